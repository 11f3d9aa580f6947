//! Response bodies on their way to clients, which may take them slowly or not at all.
//!
//! hyper asks a body for its next bytes once its client has room for them. So the time since a body was last asked is
//! the time for which its client has taken nothing, unless the body itself waits for its service. Bytes that hyper has
//! got and not written yet belong to their response too: HTTP/2 keeps them as long as its client opens no window.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

use super::body_budget::BodyBudget;
use super::{Body, BodyError};

/// The longest body that is not watched, in bytes. Most are shorter; their streams and heads take more memory.
pub const UNWATCHED_MAX: usize = 4 * 1024;
/// The bytes that hyper gets at once, so that a slow client shows progress.
pub(super) const PIECE_MAX: usize = 64 * 1024;
/// The time within which a client must take some of a response that is held in memory: 2 KiB a second.
// See docs/decisions/0025-bound-bodies-in-memory.md.
const HELD_STALL_MAX: Duration = Duration::from_secs(30);
/// The same while such responses fill their memory, and others wait or are refused for it.
const PRESSED_STALL_MAX: Duration = Duration::from_secs(1);
/// The interval of looks at that memory.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time within which a client must take some of a response that streams through. It takes a connection to the
/// service and little memory, and clients of streams pause.
const STREAM_STALL_MAX: Duration = Duration::from_secs(300);

/// The responses of one connection that its client has not taken yet.
#[derive(Debug)]
pub struct ResponseWatch {
    /// The memory that responses share which are held for their clients.
    budget: Arc<BodyBudget>,
    pending: Mutex<Vec<Weak<PendingResponse>>>,
}

/// A response until its client has taken the last byte.
#[derive(Debug)]
struct PendingResponse {
    is_held: bool,
    /// The time at which hyper last asked for some of it.
    asked_at: Mutex<Instant>,
    /// Whether the body had nothing to give when hyper last asked.
    waits_for_service: AtomicBool,
    /// The pieces that hyper has and has not written yet.
    pieces: AtomicUsize,
}

/// A response's body, as hyper reads it.
#[derive(Debug)]
pub struct ClientBody {
    body: Body,
    /// The part of a frame of `body` that hyper has not asked for yet.
    rest: Bytes,
    pending: Option<Arc<PendingResponse>>,
}

/// Bytes that hyper has and may not have written yet.
#[derive(derive_more::AsRef)]
struct HandedOver {
    #[as_ref([u8])]
    piece: Bytes,
    pending: Arc<PendingResponse>,
}

impl HandedOver {
    fn new(piece: Bytes, pending: &Arc<PendingResponse>) -> Self {
        pending.note_given();
        pending.pieces.fetch_add(1, Ordering::Relaxed);
        Self { piece, pending: Arc::clone(pending) }
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        self.pending.pieces.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ResponseWatch {
    /// A watch over no response yet. `budget` has the memory of responses that are held for their clients.
    pub fn new(budget: Arc<BodyBudget>) -> Self {
        Self { budget, pending: Mutex::default() }
    }

    /// Watches a response's body, unless it is short.
    pub fn watch(&self, body: Body) -> ClientBody {
        let is_short = body.size_hint().exact().is_some_and(|length| length <= UNWATCHED_MAX as u64);
        let pending = (!is_short).then(|| {
            let (asked_at, waits_for_service) = (Mutex::new(Instant::now()), AtomicBool::new(false));
            let pieces = AtomicUsize::new(0);
            let pending = Arc::new(PendingResponse { is_held: body.is_held(), asked_at, waits_for_service, pieces });
            self.pending.lock().push(Arc::downgrade(&pending));
            pending
        });
        ClientBody { body, rest: Bytes::new(), pending }
    }

    /// Waits until the client has stalled. Poll it in the task that drives the connection, after the connection.
    pub fn stalled(&self) -> impl Future<Output = ()> + '_ {
        let mut timer: Option<Pin<Box<Sleep>>> = None;
        std::future::poll_fn(move |cx| {
            loop {
                let now = Instant::now();
                // The timer stays: it costs more to make one for each response than a poll too many.
                let Some(deadline) = self.next_stall(now) else { return Poll::Pending };
                if deadline <= now {
                    return Poll::Ready(());
                }
                // A timer that is too early costs one poll; moving it for each piece would cost more.
                let look = deadline.min(now + LOOK_EVERY);
                let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(look)));
                if timer.is_elapsed() {
                    timer.as_mut().reset(look);
                }
                ready!(timer.as_mut().poll(cx));
            }
        })
    }

    /// The time at which the client counts as stalled: when none of its responses has moved for as long as it may take,
    /// or while responses fill their memory, when one of them has not. So a client that reads one response after the
    /// other keeps its connection, and so does one that waits for an event.
    fn next_stall(&self, now: Instant) -> Option<Instant> {
        let mut responses = self.pending.lock();
        if responses.is_empty() {
            return None;
        }
        let is_pressed = self.budget.is_pressed();
        let (mut pressed, mut last) = (None::<Instant>, None::<Instant>);
        let (mut is_any_served, mut is_any_held) = (false, false);
        responses.retain(|pending| {
            let Some(pending) = pending.upgrade() else { return false };
            let stalls_at = pending.stalls_at();
            is_any_served |= stalls_at.is_none();
            is_any_held |= pending.is_held;
            last = last.max(stalls_at);
            if let Some(at) = pending.stalls_after(PRESSED_STALL_MAX).filter(|_| is_pressed && pending.is_held) {
                pressed = Some(pressed.map_or(at, |first| first.min(at)));
            }
            true
        });
        let stalls_at = pressed.into_iter().chain(last.filter(|_| !is_any_served)).min();
        // Others may need the room of its responses before one of them moves again.
        stalls_at.or(is_any_held.then(|| now + LOOK_EVERY))
    }
}

impl PendingResponse {
    /// The time at which its client has taken nothing of it for too long; `None` while the client has all there is.
    fn stalls_at(&self) -> Option<Instant> {
        self.stalls_after(if self.is_held { HELD_STALL_MAX } else { STREAM_STALL_MAX })
    }

    fn stalls_after(&self, stall_max: Duration) -> Option<Instant> {
        let has_all = self.waits_for_service.load(Ordering::Relaxed) && self.pieces.load(Ordering::Relaxed) == 0;
        (!has_all).then(|| *self.asked_at.lock() + stall_max)
    }

    /// Notes that hyper has asked, and got something.
    fn note_given(&self) {
        *self.asked_at.lock() = Instant::now();
        self.waits_for_service.store(false, Ordering::Relaxed);
    }
}

impl http_body::Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { body, rest, pending } = self.get_mut();
        let Some(pending) = pending else { return Pin::new(body).poll_frame(cx) };
        if rest.is_empty() {
            let Poll::Ready(next) = Pin::new(body).poll_frame(cx) else {
                pending.waits_for_service.store(true, Ordering::Relaxed);
                return Poll::Pending;
            };
            pending.note_given();
            match next.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => *rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let piece = rest.split_to(rest.len().min(PIECE_MAX));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(HandedOver::new(piece, pending))))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::time::{sleep, timeout};

    use super::super::stream::StreamWriter;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn held(length: usize) -> (Body, Arc<BodyBudget>) {
        let budget = BodyBudget::new(1 << 30);
        (counted(length, &budget), budget)
    }

    fn counted(length: usize, budget: &Arc<BodyBudget>) -> Body {
        Body::whole(budget.share_of(length).attach_to(vec![b'x'; length].into()))
    }

    fn unpressed() -> ResponseWatch {
        ResponseWatch::new(BodyBudget::new(1 << 30))
    }

    /// A body whose writer has sent nothing yet.
    fn open() -> (StreamWriter, Body) {
        let writer = StreamWriter::new(BodyBudget::new(1 << 30).share());
        let reader = writer.source().read_from(0, true).expect("it is kept");
        (writer, Body::Shared(reader, None))
    }

    async fn next(body: &mut ClientBody) -> Bytes {
        body.frame().await.expect("there is more").expect("it is whole").into_data().expect("it is data")
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_response_of_which_nothing_is_taken_for_30_s_has_stalled() {
        let watch = unpressed();
        let (body, _) = held(3 * PIECE_MAX);
        let mut body = watch.watch(body);
        let mut pieces = Vec::new();
        for _ in 0..3 {
            assert!(timeout(29 * SECOND, watch.stalled()).await.is_err(), "it was asked for a piece meanwhile");
            pieces.push(next(&mut body).await);
        }
        assert!(body.is_end_stream());
        drop(body);
        assert!(timeout(31 * SECOND, watch.stalled()).await.is_ok(), "hyper has not written the pieces");
        drop(pieces);
        assert!(timeout(3_600 * SECOND, watch.stalled()).await.is_err(), "nothing is pending any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_never_asked_for_has_stalled_too() {
        let watch = unpressed();
        let _body = watch.watch(held(UNWATCHED_MAX + 1).0);
        assert!(timeout(31 * SECOND, watch.stalled()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn while_responses_fill_their_memory_one_of_which_nothing_is_taken_for_1_s_has_stalled() {
        let budget = BodyBudget::new(2 * PIECE_MAX as u64);
        let watch = ResponseWatch::new(Arc::clone(&budget));
        let _body = watch.watch(counted(PIECE_MAX, &budget));
        assert!(timeout(5 * SECOND, watch.stalled()).await.is_err());
        let others = budget.share_of(PIECE_MAX);
        assert!(timeout(2 * SECOND, watch.stalled()).await.is_ok());
        drop(others);
        assert!(timeout(5 * SECOND, watch.stalled()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_waits_for_its_service_has_not_stalled() {
        let watch = unpressed();
        let (writer, body) = open();
        let mut body = watch.watch(body);
        let service = tokio::spawn(async move {
            sleep(3_600 * SECOND).await;
            writer.push(Bytes::from_static(b"late"));
        });
        let mut first = Box::pin(body.frame());
        tokio::select! {
            biased;
            frame = &mut first => assert!(frame.is_some()),
            () = watch.stalled() => panic!("its client waits"),
        }
        service.await.expect("it has sent");
    }

    #[tokio::test(start_paused = true)]
    async fn a_piece_that_is_not_written_counts_while_the_service_is_silent_and_after_the_end() {
        let watch = unpressed();
        let (writer, body) = open();
        let mut body = watch.watch(body);
        writer.push(Bytes::from_static(b"first"));
        let first = next(&mut body).await;
        assert!(timeout(SECOND, body.frame()).await.is_err(), "the service is silent");
        assert!(timeout(31 * SECOND, watch.stalled()).await.is_ok());
        writer.end(http::HeaderMap::new());
        assert!(body.frame().await.is_none());
        drop(body);
        assert!(timeout(29 * SECOND, watch.stalled()).await.is_err());
        assert!(timeout(2 * SECOND, watch.stalled()).await.is_ok());
        drop(first);
        assert!(timeout(3_600 * SECOND, watch.stalled()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_some_of_one_response_or_waits_for_an_event_has_not_stalled() {
        let watch = unpressed();
        let (mut read, _unread) = (watch.watch(held(3 * PIECE_MAX).0), watch.watch(held(PIECE_MAX).0));
        for _ in 0..3 {
            assert!(timeout(29 * SECOND, watch.stalled()).await.is_err());
            next(&mut read).await;
        }
        drop(read);
        let (_writer, events) = open();
        let mut events = watch.watch(events);
        assert!(timeout(SECOND, events.frame()).await.is_err());
        assert!(timeout(3_600 * SECOND, watch.stalled()).await.is_err(), "an event may come");
        drop(events);
        assert!(timeout(SECOND, watch.stalled()).await.is_ok(), "nothing of the other is taken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_beside_one_that_waits_for_its_service_stalls_once_others_need_its_room() {
        let budget = BodyBudget::new(2 * PIECE_MAX as u64);
        let watch = ResponseWatch::new(Arc::clone(&budget));
        let _unread = watch.watch(counted(PIECE_MAX, &budget));
        let (_writer, events) = open();
        let mut events = watch.watch(events);
        assert!(timeout(SECOND, events.frame()).await.is_err());
        let mut stalled = Box::pin(watch.stalled());
        assert!(timeout(60 * SECOND, &mut stalled).await.is_err());
        let _others = budget.share_of(PIECE_MAX);
        assert!(timeout(2 * SECOND, stalled).await.is_ok());
    }

    #[tokio::test]
    async fn the_share_of_a_response_counts_until_its_last_byte_is_written() {
        let watch = unpressed();
        let (body, budget) = held(PIECE_MAX + 1);
        let mut body = watch.watch(body);
        let (first, last) = (next(&mut body).await, next(&mut body).await);
        assert_eq!((first.len(), last.len(), body.is_end_stream()), (PIECE_MAX, 1, true));
        drop((body, first));
        assert_eq!(budget.held(), PIECE_MAX as u64 + 1);
        drop(last);
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test]
    async fn a_watched_body_has_the_length_and_the_bytes_of_its_original() {
        let watch = unpressed();
        let bytes: Vec<u8> = (0..3 * PIECE_MAX + 7).map(|number| number as u8).collect();
        let mut body = watch.watch(Body::whole(bytes.clone()));
        assert_eq!(body.size_hint().exact(), Some(bytes.len() as u64));
        let first = next(&mut body).await;
        assert_eq!(body.size_hint().exact(), Some((bytes.len() - PIECE_MAX) as u64));
        let rest = body.collect().await.expect("it is whole").to_bytes();
        assert_eq!([first, rest].concat(), bytes);
    }
}
