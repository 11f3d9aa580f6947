//! The framing guard: what it lets through has one reading.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use framing_guard::{FramingError, FramingTimeouts, GuardedStream, Verdicts};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::bytes_reader::BytesReader;
use super::requests_model::{Leniency, ReadEnd, ReadRequest, read_requests, readers};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";

/// Checks a client's bytes. The input's first two bytes are the sizes of its pieces and of the reads.
///
/// - The guard lets through requests that a strict reader and every lenient one read alike.
/// - However the bytes are cut, the same requests come through, and the end is refused or not.
/// - There is one verdict for each request.
/// - Only a connection that begins with the preface of HTTP/2 passes unread.
pub fn check(input: &[u8]) {
    let mut input = BytesReader::new(input);
    let (piece, room) = (usize::from(input.byte()) + 1, usize::from(input.byte()) + 1);
    let bytes = input.rest();
    let whole = guard(bytes, &[usize::MAX], 16 * 1024);
    for (pieces, room) in [(&[1][..], 16 * 1024), (&[piece, room, 1][..], 16 * 1024), (&[piece][..], room)] {
        let cut = guard(bytes, pieces, room);
        assert_eq!((&cut.requests, cut.is_refused), (&whole.requests, whole.is_refused), "{pieces:?} {room}");
    }
}

/// The requests that came through.
struct GuardedRequests {
    requests: Vec<ReadRequest>,
    is_refused: bool,
}

/// Reads a connection to its end: in pieces of these sizes, over and over, and with this much room for each read.
fn guard(bytes: &[u8], pieces: &[usize], room: usize) -> GuardedRequests {
    let stream = CutStream { left: bytes, pieces, next: 0 };
    let (mut guarded, verdicts) = GuardedStream::new(stream, FramingTimeouts::default());
    let (mut passed, mut buffer) = (Vec::new(), vec![0; room]);
    let mut context = Context::from_waker(Waker::noop());
    let is_refused = loop {
        let mut buffer = ReadBuf::new(&mut buffer);
        match Pin::new(&mut guarded).poll_read(&mut context, &mut buffer) {
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => break false,
            Poll::Ready(Ok(())) => passed.extend_from_slice(buffer.filled()),
            Poll::Ready(Err(error)) => {
                assert!(FramingError::found_in(&error).is_some(), "{error}");
                break true;
            }
            Poll::Pending => {
                passed = passed.strip_suffix(STAND_IN).expect("a stand-in").to_vec();
                break true;
            }
        }
    };
    assert!(bytes.starts_with(&passed), "bytes come through unchanged");
    if verdicts.is_http2() {
        assert!(bytes.starts_with(PREFACE) && passed == bytes && !is_refused);
        return GuardedRequests { requests: Vec::new(), is_refused };
    }
    let (requests, end) = read_requests(&passed, Leniency::default());
    assert_ne!(end, ReadEnd::Refused, "{}", passed.escape_ascii());
    for reader in readers() {
        assert_eq!(read_requests(&passed, reader), (requests.clone(), end), "{reader:?}: {}", passed.escape_ascii());
    }
    assert!(requests.iter().all(|request| request.hosts.len() <= 1));
    let heads = requests.len() + usize::from(end == ReadEnd::Cut);
    check_verdicts(&verdicts, heads, is_refused);
    GuardedRequests { requests, is_refused }
}

/// One verdict for each head that came through, and one for the stand-in. Nothing more comes after that.
fn check_verdicts(verdicts: &Verdicts, heads: usize, is_refused: bool) {
    for _ in 0..heads {
        assert_eq!(verdicts.next(), Ok(()));
    }
    match verdicts.next() {
        Err(FramingError::Unjudged) => {}
        Err(error) => {
            assert!(is_refused && (400..600).contains(&error.status().as_u16()));
            assert_eq!(verdicts.next(), Err(FramingError::Unjudged));
        }
        Ok(()) => panic!("a verdict too many"),
    }
}

/// A client that sends all its bytes at once, which arrive in pieces.
struct CutStream<'a> {
    left: &'a [u8],
    pieces: &'a [usize],
    next: usize,
}

impl AsyncRead for CutStream<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let piece = self.pieces[self.next % self.pieces.len()];
        self.next += 1;
        let (taken, left) = self.left.split_at(piece.min(buffer.remaining()).min(self.left.len()));
        buffer.put_slice(taken);
        self.left = left;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CutStream<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
