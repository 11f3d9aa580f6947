//! The beginning of a consumer's session, and the reason of its end.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The time from the DNS lookup to a session that receives messages. A broker that is starting needs about as long.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// The reason why a session ended or did not begin.
pub(super) struct SessionError {
    pub(super) cause: String,
    /// Whether messages were being delivered.
    pub(super) was_consuming: bool,
}

/// Opens a session. `None` if it is stopped before.
pub(super) async fn open_session<S>(
    stop: &CancellationToken,
    open: impl Future<Output = Result<S, String>>,
) -> Option<Result<S, SessionError>> {
    let opened = stop.run_until_cancelled(in_time(open)).await?;
    Some(opened.map_err(|cause| SessionError { cause, was_consuming: false }))
}

/// Awaits an answer of the broker for [`CONNECT_TIMEOUT`].
pub(super) async fn in_time<T>(answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let answer = timeout(CONNECT_TIMEOUT, answer).await;
    answer.map_err(|_| format!("no answer in {} s", CONNECT_TIMEOUT.as_secs()))?
}
