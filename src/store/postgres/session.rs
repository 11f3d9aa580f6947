//! The task that drives a connection to the server, and ends it after a commit that is not durable.

use std::future::poll_fn;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Connection};

/// The function of the server that waits for the synchronous standby. Its notices name it in every language, and their
/// texts are translated (`lc_messages`).
const STANDBY_WAIT: &str = "SyncRepWaitForLSN";

/// Moves messages between the client and the server, until one of them closes the connection.
///
/// A cancelled wait for the synchronous standby ends it, too: the server has committed locally, warns, and then reports
/// success. The driver reads messages in their order, and a statement succeeds only with the server's `ReadyForQuery`,
/// which follows the commit and its warning. So a statement whose connection ends at the warning has got no answer: it
/// may have been executed, and its caller asks again.
///
/// Errors of the connection are returned to the client's user.
pub(super) async fn drive<S, T>(mut connection: Connection<S, T>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notice(notice) = message
            && is_cancelled_standby_wait(&notice)
        {
            tracing::warn!(
                code = notice.code().code(),
                "a commit's wait for its synchronous standby was cancelled; it is not durable, and its result is asked for again"
            );
            return;
        }
    }
}

/// Whether the server gave up a commit's wait for its standby: cancelled by a user (01000), or because the session is
/// terminated (57P01).
fn is_cancelled_standby_wait(notice: &DbError) -> bool {
    notice.routine() == Some(STANDBY_WAIT)
}
