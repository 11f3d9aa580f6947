//! A response's body while it comes in: one task writes it, and several clients read it, each at its own pace.
//!
//! The whole body is kept as long as it may be stored, so that a reader can begin at any byte. After that only the
//! bytes are kept which some reader has not read, and the writer waits for the slowest reader.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName};
use http_body::Frame;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::BodyError;
use super::body_budget::BudgetShare;
use super::client_body::PIECE_MAX;

/// The bytes by which a reader may be behind the writer of a body that is not kept: some frames of HTTP/2, so that
/// neither waits for each frame of the other.
const BEHIND_MAX: usize = 256 * 1024;
/// Pieces are put together up to this length. A piece of a few bytes would keep the buffer of its read, which has 8 KiB
/// or more and counts nowhere.
const JOINED_MAX: usize = 4 * 1024;

/// The writer's side. Dropping it before [`Self::end`] breaks the body off.
#[derive(Debug)]
pub struct StreamWriter(Arc<SharedBody>);

/// A body that further readers can join.
#[derive(Clone, Debug)]
pub struct StreamSource(Arc<SharedBody>);

#[derive(Debug)]
pub struct StreamReader {
    body: Arc<SharedBody>,
    number: usize,
    accepts_trailers: bool,
    /// The names of trailers that it does not get.
    withheld: Vec<HeaderName>,
}

#[derive(Debug)]
struct SharedBody {
    state: Mutex<StreamState>,
    /// Tells the writer that a reader has read or is gone.
    moved: Notify,
}

#[derive(Clone, Copy, Debug)]
pub struct BodyProgress {
    pub bytes: u64,
    pub began: Instant,
    /// When its last bytes came.
    pub last: Option<Instant>,
}

#[derive(Debug)]
struct StreamState {
    progress: BodyProgress,
    pieces: VecDeque<Bytes>,
    /// The number of pieces that were dropped before the first of `pieces`.
    dropped: usize,
    held: usize,
    share: BudgetShare,
    is_kept: bool,
    end: Option<BodyEnd>,
    /// The readers by number; `None` for one that is gone.
    readers: Vec<Option<ReaderPlace>>,
}

#[derive(Debug)]
enum BodyEnd {
    Broken,
    /// The trailers say what the end means, so a reader without trailers must not see one.
    Told(HeaderMap),
    Whole(HeaderMap),
}

#[derive(Debug, Default)]
struct ReaderPlace {
    /// The number of the next piece.
    piece: usize,
    skip: usize,
    waker: Option<Waker>,
    has_trailers: bool,
    is_cut: bool,
}

impl StreamWriter {
    /// An empty body, kept as a whole, whose bytes count in `share`. The share may count the first bytes already.
    pub fn new(share: BudgetShare) -> Self {
        let state = StreamState {
            progress: BodyProgress { bytes: 0, began: Instant::now(), last: None },
            pieces: VecDeque::new(),
            dropped: 0,
            held: 0,
            share,
            is_kept: true,
            end: None,
            readers: Vec::new(),
        };
        Self(Arc::new(SharedBody { state: Mutex::new(state), moved: Notify::new() }))
    }

    pub fn source(&self) -> StreamSource {
        StreamSource(Arc::clone(&self.0))
    }

    pub fn push(&self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        self.0.change(|state| {
            state.progress.bytes += piece.len() as u64;
            state.progress.last = Some(Instant::now());
            state.held += piece.len();
            let uncounted = (state.held as u64).saturating_sub(state.share.bytes());
            state.share.add(uncounted as usize);
            state.append(piece);
            state.drop_read();
        });
    }

    /// Keeps only what some reader has not read.
    pub fn stop_keeping(&self) {
        let mut state = self.0.state.lock();
        state.is_kept = false;
        state.drop_read();
    }

    pub fn is_kept(&self) -> bool {
        self.0.state.lock().is_kept
    }

    pub fn held(&self) -> usize {
        self.0.state.lock().held
    }

    /// Waits until the slowest reader is near enough. A body that is kept has room for what comes. Gives the slowest
    /// readers up when they have taken nothing for `stall_max`: their bodies break off. Returns whether it has given
    /// any up.
    pub async fn make_room(&self, stall_max: Duration) -> bool {
        let (mut has_cut, mut slowest) = (false, self.0.state.lock().slowest());
        while timeout(stall_max, self.has_room()).await.is_err() {
            let before = std::mem::replace(&mut slowest, self.0.state.lock().slowest());
            if slowest == before {
                self.cut_slowest();
                has_cut = true;
            }
        }
        has_cut
    }

    async fn has_room(&self) {
        self.wait_until(|state| state.is_kept || state.held <= BEHIND_MAX).await;
    }

    pub fn has_readers(&self) -> bool {
        self.0.state.lock().has_readers()
    }

    /// Waits until no reader is left.
    pub async fn is_abandoned(&self) {
        self.wait_until(|state| !state.has_readers()).await;
    }

    async fn wait_until(&self, holds: impl Fn(&StreamState) -> bool) {
        loop {
            let moved = self.0.moved.notified();
            if holds(&self.0.state.lock()) {
                return;
            }
            moved.await;
        }
    }

    fn cut_slowest(&self) {
        self.0.change(|state| {
            let slowest = state.slowest();
            for place in state.readers.iter_mut().flatten().filter(|place| Some(place.at()) == slowest) {
                place.is_cut = true;
            }
            state.drop_read();
        });
    }

    /// The whole body, if it is kept.
    pub fn whole(&self) -> Option<Bytes> {
        self.source().kept()
    }

    pub fn end(self, trailers: HeaderMap) {
        self.0.change(|state| state.end = Some(BodyEnd::Whole(trailers)));
    }

    /// Ends the body for the readers that take trailers, and breaks it off for the others.
    pub fn end_if_told(self, trailers: HeaderMap) {
        self.0.change(|state| state.end = Some(BodyEnd::Told(trailers)));
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.end.get_or_insert(BodyEnd::Broken);
        });
    }
}

impl StreamSource {
    pub fn progress(&self) -> BodyProgress {
        self.0.state.lock().progress
    }

    /// What there is of the body, if all of it is kept.
    pub fn kept(&self) -> Option<Bytes> {
        let state = self.0.state.lock();
        if !state.is_kept {
            return None;
        }
        if let [only] = state.pieces.as_slices().0
            && state.pieces.len() == 1
        {
            return Some(only.clone());
        }
        let mut all = BytesMut::with_capacity(state.held);
        state.pieces.iter().for_each(|piece| all.extend_from_slice(piece));
        Some(all.freeze())
    }

    /// A reader that begins at this byte; `None` if that byte is gone or is still to come, or if the body has ended:
    /// the key has an outcome by then, and perhaps another attempt.
    pub fn read_from(&self, byte: usize, accepts_trailers: bool) -> Option<StreamReader> {
        let mut state = self.0.state.lock();
        if !state.is_kept || byte > state.held || state.end.is_some() {
            return None;
        }
        let mut place = ReaderPlace { skip: byte, ..ReaderPlace::default() };
        while let Some(piece) = state.pieces.get(place.piece).filter(|piece| piece.len() <= place.skip) {
            place.skip -= piece.len();
            place.piece += 1;
        }
        let number = state.readers.iter().position(Option::is_none).unwrap_or(state.readers.len());
        if number == state.readers.len() {
            state.readers.push(None);
        }
        state.readers[number] = Some(place);
        Some(StreamReader { body: Arc::clone(&self.0), number, accepts_trailers, withheld: Vec::new() })
    }
}

impl SharedBody {
    /// Changes the state, and wakes the readers.
    fn change(&self, change: impl FnOnce(&mut StreamState)) {
        let wakers: Vec<Waker> = {
            let mut state = self.state.lock();
            change(&mut state);
            state.readers.iter_mut().flatten().filter_map(|place| place.waker.take()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl ReaderPlace {
    fn at(&self) -> (usize, usize) {
        (self.piece, self.skip)
    }
}

impl StreamState {
    fn has_readers(&self) -> bool {
        self.readers.iter().any(Option::is_some)
    }

    fn append(&mut self, piece: Bytes) {
        let Some(last) = self.pieces.back_mut().filter(|last| last.len() + piece.len() <= JOINED_MAX) else {
            // A copy, unless what it keeps is about as long as itself.
            let piece = if piece.len() < JOINED_MAX { Bytes::copy_from_slice(&piece) } else { piece };
            return self.pieces.push_back(piece);
        };
        let begun = last.len();
        *last = [&**last, &*piece].concat().into();
        let last = self.dropped + self.pieces.len() - 1;
        for place in self.readers.iter_mut().flatten().filter(|place| place.piece > last) {
            (place.piece, place.skip) = (last, begun);
        }
    }

    fn slowest(&self) -> Option<(usize, usize)> {
        self.readers.iter().flatten().filter(|place| !place.is_cut).map(ReaderPlace::at).min()
    }

    /// Drops the pieces that every reader has read, unless the body is kept.
    fn drop_read(&mut self) {
        if self.is_kept {
            return;
        }
        let first = self.slowest().map_or(self.dropped + self.pieces.len(), |(piece, _)| piece);
        for piece in self.pieces.drain(..first - self.dropped) {
            self.held -= piece.len();
            self.share.remove(piece.len());
        }
        self.dropped = first;
    }
}

impl StreamReader {
    pub fn without_trailers(mut self, withheld: Vec<HeaderName>) -> Self {
        self.withheld = withheld;
        self
    }

    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = self.body.state.lock();
        let StreamState { pieces, dropped, readers, end, is_kept, .. } = &mut *state;
        let place = readers[self.number].as_mut().expect("its place is there as long as the reader");
        if place.is_cut {
            return Poll::Ready(Some(Err("its client took the body too slowly".into())));
        }
        if let Some(piece) = pieces.get(place.piece - *dropped) {
            // A client takes a large piece in several, and the rest counts until then.
            let end = piece.len().min(place.skip + PIECE_MAX);
            let data = piece.slice(place.skip..end);
            (place.piece, place.skip) = if end == piece.len() { (place.piece + 1, 0) } else { (place.piece, end) };
            if place.skip == 0 && !*is_kept {
                state.drop_read();
                self.body.moved.notify_waiters();
            }
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match end {
            None => {
                if place.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
                    place.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            Some(BodyEnd::Broken) => Poll::Ready(Some(Err("the body broke off".into()))),
            Some(BodyEnd::Told(_)) if !self.accepts_trailers => {
                Poll::Ready(Some(Err("its end cannot be told without trailers".into())))
            }
            Some(BodyEnd::Told(trailers) | BodyEnd::Whole(trailers)) => {
                let has_them = std::mem::replace(&mut place.has_trailers, true);
                if !self.accepts_trailers || has_them {
                    return Poll::Ready(None);
                }
                let mut trailers = trailers.clone();
                self.withheld.iter().for_each(|name| drop(trailers.remove(name)));
                Poll::Ready((!trailers.is_empty()).then(|| Ok(Frame::trailers(trailers))))
            }
        }
    }

    /// Reads to the end. Returns whether the body was whole.
    pub async fn drain(mut self) -> bool {
        loop {
            match std::future::poll_fn(|cx| self.poll_frame(cx)).await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(_)) => {}
            }
        }
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        let mut state = self.body.state.lock();
        state.readers[self.number] = None;
        state.drop_read();
        drop(state);
        self.body.moved.notify_waiters();
    }
}

impl http_body::Body for StreamReader {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Self::poll_frame(self.get_mut(), cx)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http_body_util::BodyExt;
    use tokio::time::sleep;

    use super::super::body_budget::BodyBudget;
    use super::*;

    const STALL: Duration = Duration::from_secs(30);

    fn writer() -> (StreamWriter, Arc<BodyBudget>) {
        let budget = BodyBudget::new(8 << 20);
        (StreamWriter::new(budget.share()), budget)
    }

    fn reader(writer: &StreamWriter) -> StreamReader {
        writer.source().read_from(0, true).expect("the body is kept")
    }

    async fn is_pending(waits: impl Future) -> bool {
        timeout(Duration::from_millis(1), waits).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn each_reader_gets_all_bytes_and_the_trailers_whenever_it_begins_before_the_end() {
        let (writer, budget) = writer();
        let early = tokio::spawn(reader(&writer).collect());
        let mut middle = None;
        for number in 0..10_u8 {
            if number == 5 {
                middle = Some(tokio::spawn(reader(&writer).collect()));
            }
            writer.push(Bytes::from(vec![number; 3]));
            tokio::task::yield_now().await;
        }
        let source = writer.source();
        let from_byte_4 = tokio::spawn(source.read_from(4, false).unwrap().collect());
        let trailers = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("1"))]);
        writer.end(trailers.clone());
        assert!(source.read_from(0, true).is_none(), "the store has the outcome");
        let whole: Vec<u8> = (0..10).flat_map(|number| [number; 3]).collect();
        assert_eq!(budget.held(), 30);
        for read in [early, middle.unwrap()] {
            let read = read.await.unwrap().unwrap();
            assert_eq!(read.trailers(), Some(&trailers));
            assert_eq!(read.to_bytes(), whole);
        }
        let read = from_byte_4.await.unwrap().unwrap();
        assert_eq!(read.trailers(), None);
        assert_eq!(read.to_bytes(), whole[4..]);
        drop(source);
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_whose_writer_is_gone_breaks_off() {
        let (writer, _) = writer();
        let mut read = reader(&writer);
        writer.push(Bytes::from_static(b"begin"));
        drop(writer);
        assert!(read.frame().await.unwrap().is_ok());
        assert!(read.frame().await.unwrap().is_err());
        assert!(!read.drain().await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_not_kept_waits_for_its_slowest_reader_until_that_is_cut() {
        let (writer, budget) = writer();
        let (mut fast, mut slow) = (reader(&writer), reader(&writer));
        writer.stop_keeping();
        let piece = Bytes::from(vec![b'x'; BEHIND_MAX]);
        writer.push(piece.clone());
        writer.has_room().await;
        writer.push(piece.clone());
        assert!(is_pending(writer.has_room()).await);
        for _ in 0..2 * BEHIND_MAX / PIECE_MAX {
            assert!(fast.frame().await.unwrap().is_ok());
        }
        assert!(is_pending(writer.has_room()).await);
        assert_eq!(budget.held(), 2 * BEHIND_MAX as u64);
        assert!(writer.make_room(STALL).await);
        assert_eq!(budget.held(), 0);
        assert!(slow.frame().await.unwrap().is_err());
        assert!(writer.source().read_from(0, true).is_none() && writer.whole().is_none());
        writer.push(Bytes::from_static(b"last"));
        writer.end(HeaderMap::new());
        assert_eq!(fast.collect().await.unwrap().to_bytes(), "last");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_something_within_each_stall_time_is_not_cut() {
        let (writer, _) = writer();
        let mut slow = reader(&writer);
        writer.push(Bytes::from(vec![b'x'; 10 * PIECE_MAX]));
        writer.push(Bytes::from_static(b"last"));
        writer.stop_keeping();
        let reading = tokio::spawn(async move {
            for _ in 0..10 {
                sleep(STALL * 9 / 10).await;
                assert!(slow.frame().await.unwrap().is_ok());
            }
        });
        assert!(!writer.make_room(STALL).await);
        reading.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn small_pieces_keep_no_buffer_but_their_own_and_are_read_in_order_across_joins() {
        let (writer, budget) = writer();
        let buffer = Bytes::from(vec![b'x'; 2 * JOINED_MAX]);
        let mut early = reader(&writer);
        let mut read = Vec::new();
        for _ in 0..1_000 {
            writer.push(buffer.slice(..10));
            if read.len() < 200 {
                read.extend(early.frame().await.unwrap().unwrap().into_data().unwrap());
            }
        }
        assert!(buffer.is_unique(), "a read's buffer stays as long as the body");
        assert!(writer.0.state.lock().pieces.len() <= 3, "the pieces take more memory than their bytes");
        let late = tokio::spawn(writer.source().read_from(0, false).unwrap().collect());
        tokio::task::yield_now().await;
        writer.push(Bytes::from_static(b"end"));
        assert_eq!(budget.held(), 10_003);
        writer.end(HeaderMap::new());
        read.extend(early.collect().await.unwrap().to_bytes());
        assert_eq!(read, late.await.unwrap().unwrap().to_bytes());
        assert!(read.len() == 10_003 && read.ends_with(b"xend"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_writer_learns_that_the_last_reader_is_gone() {
        let (writer, _) = writer();
        let readers = [reader(&writer), reader(&writer)];
        for reader in readers {
            assert!(is_pending(writer.is_abandoned()).await);
            drop(reader);
        }
        writer.is_abandoned().await;
    }
}
