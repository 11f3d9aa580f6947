//! One timer for everything the guard waits for.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A deadline that is set anew with every request and hardly ever comes.
///
/// Calming and setting it only changes a field. The timer itself stays where it is in the runtime's wheel, fires too
/// early some day, and is then moved to the deadline of that day: one operation per `after`, not one per request.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    set: Option<(Purpose, Instant)>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// What is being waited for. A new purpose is a new deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// More of a body.
    Body,
    /// The rest of a head that was begun.
    Head,
    /// The next request.
    Idle,
    /// The client's end of a connection that we have closed.
    Linger,
}

impl Alarm {
    /// Ready once `purpose` has been waited for during `after`, counted from the first call for it.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, purpose: Purpose, after: Duration) -> Poll<()> {
        let due = match self.set {
            Some((set, due)) if set == purpose => due,
            _ => {
                let due = Instant::now() + after;
                self.set = Some((purpose, due));
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

    /// What was waited for has come.
    pub(super) fn calm(&mut self) {
        self.set = None;
    }
}
