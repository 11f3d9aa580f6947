//! Writes several small slices as one.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

/// Up to 4 KiB are copied into one buffer: a head and a small body. A plain write costs the system less than a list of
/// slices.
const BYTES_MAX: usize = 4 * 1024;

/// Writes as much of `slices` as the stream takes, like [`AsyncWrite::poll_write_vectored`].
pub fn poll_write<W: AsyncWrite>(
    stream: Pin<&mut W>,
    context: &mut Context<'_>,
    slices: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    match slices {
        [one] => stream.poll_write(context, one),
        some if some.iter().map(|slice| slice.len()).sum::<usize>() <= BYTES_MAX => BUFFER.with_borrow_mut(|buffer| {
            buffer.clear();
            some.iter().for_each(|slice| buffer.extend_from_slice(slice));
            stream.poll_write(context, buffer)
        }),
        many => stream.poll_write_vectored(context, many),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn slices_arrive_in_their_order_whether_few_or_many() {
        for length in [1, 100, BYTES_MAX / 2, BYTES_MAX / 2 + 1] {
            let (mut near, mut far) = tokio::io::duplex(4 * BYTES_MAX);
            let (first, second) = (vec![1; length], vec![2; length]);
            let slices = [IoSlice::new(&first), IoSlice::new(&second)];
            let written = poll_fn(|context| poll_write(Pin::new(&mut near), context, &slices)).await.unwrap();
            drop(near);
            let mut arrived = Vec::new();
            far.read_to_end(&mut arrived).await.unwrap();
            assert_eq!(arrived, [first, second].concat()[..written], "{length}");
            assert!(written >= length);
        }
    }
}
