//! The task that drives a connection to the server. It ends the connection after a commit that is not durable, and if
//! the server is refused.

use std::future::poll_fn;
use std::sync::Arc;

use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};

use super::primaries::{KnownPrimary, PrimaryIdentity, ServerRole};
use super::tls::{BoxError, PgTls};

/// The function of the server that waits for the synchronous standby. Its notices say that the wait was cancelled by a
/// user (01000), or ends with the session (57P01). They name it in every language, and their texts are translated
/// (`lc_messages`).
// See docs/decisions/0007-answer-from-durable-rows.md.
const STANDBY_WAIT: &str = "SyncRepWaitForLSN";

/// The side of a connection that reads and writes its socket.
pub(super) type PgDriver = Connection<Socket, <PgTls as MakeTlsConnect<Socket>>::Stream>;

/// Moves messages between the client and the server, until one of them closes the connection.
///
/// A cancelled wait for the synchronous standby ends it, too: the server has committed locally, warns, and then reports
/// success. The driver reads messages in their order, and a statement succeeds only with the server's `ReadyForQuery`,
/// which follows the commit and its warning. So a statement whose connection ends at the warning has got no answer: it
/// may have been executed, and its caller asks again.
///
/// Errors of the connection are returned to the client's user.
async fn drive(connection: &mut PgDriver) {
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notice(notice) = message
            && notice.routine() == Some(STANDBY_WAIT)
        {
            tracing::warn!(
                code = notice.code().code(),
                "a commit's wait for its synchronous standby was cancelled; it is not durable, and its result is asked for again"
            );
            return;
        }
    }
}

/// Drives a connection until it ends or its server is refused. A refusal comes first: no statement is sent after it.
pub(super) async fn drive_until_refused(
    mut connection: PgDriver,
    server: Option<(Arc<KnownPrimary>, PrimaryIdentity)>,
) {
    let Some((known_primary, server)) = server else { return drive(&mut connection).await };
    tokio::select! {
        biased;
        refusal = known_primary.refused(server) => {
            tracing::info!(%refusal, "a connection to the store is closed");
        }
        () = drive(&mut connection) => {}
    }
}

/// Asks the server which one it is, on a connection that no task drives yet.
pub(super) async fn ask(client: &Client, connection: &mut PgDriver) -> Result<ServerRole, BoxError> {
    tokio::select! {
        role = ServerRole::ask(client) => role,
        () = drive(connection) => Err("the server closed the connection".into()),
    }
}
