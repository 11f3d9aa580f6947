//! One timer for everything that the guard waits for.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// The wait in place of one that is too long for an [`Instant`], such as `Duration::MAX`: 30 years.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// A deadline that is set with every request and hardly ever passes.
///
/// Setting and clearing it only changes a field. The timer itself stays where it is in the runtime's timer wheel; when
/// it fires too early, it is moved to the current deadline: one timer operation per `after`, not one per request.
#[derive(Debug, Default)]
pub(super) struct Deadline {
    due: Option<(WaitPurpose, Instant)>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// The event that is being waited for. A new purpose starts a new deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitPurpose {
    /// More of a body.
    Body,
    /// The rest of a head that was begun.
    Head,
    /// The next request.
    Idle,
    /// The client's close of a connection that we have closed.
    Linger,
}

impl Deadline {
    /// Ready once `after` has passed since the first call for this `purpose`.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, purpose: WaitPurpose, after: Duration) -> Poll<()> {
        let due = match self.due {
            Some((current, due)) if current == purpose => due,
            _ => {
                let now = Instant::now();
                let due = now.checked_add(after).unwrap_or_else(|| now + FOREVER);
                self.due = Some((purpose, due));
                due
            }
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() > due {
            timer.as_mut().reset(due);
        }
        loop {
            ready!(timer.as_mut().poll(context));
            if timer.deadline() >= due {
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
    }

    /// Clears the deadline, because the event has come.
    pub(super) fn clear(&mut self) {
        self.due = None;
    }
}
