//! `oncegate demo --serve`: the payments service and the proxy, until Ctrl-C.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};

use super::DemoError;
use super::payments::Payments;
use super::proxy::{DemoListeners, DemoProxy, find_free_address};

/// The ports of most examples, and the defaults of the proxy.
const SERVICE: u16 = 3000;
const LISTEN: u16 = 8080;
const ADMIN: u16 = 8081;

/// Runs both until SIGINT, SIGTERM or SIGHUP. A port that another program has is replaced by a free one.
/// An error: the proxy does not start, or ends by itself.
pub async fn serve(program: &Path, out: &mut dyn Write) -> Result<(), DemoError> {
    let upstream = Arc::new(Payments::default()).start(find_free_address(SERVICE)?).await?;
    let (listen, admin) = (find_free_address(LISTEN)?, find_free_address(ADMIN)?);
    let listeners = DemoListeners { listen, admin, log: "info", has_own_group: true };
    let mut proxy = DemoProxy::start(program, upstream, &listeners).await?;
    let text = format!(
        "Oncegate listens on http://{listen} in front of a payments service on http://{upstream}.\n\
         The admin page is http://{admin}, without a token; `oncegate keys list --admin {admin}` shows its keys. Ctrl-C ends all of it and deletes the records.\n\n\
         In a second terminal, the same command twice:\n\n    \
         curl -i http://{listen}/v1/payments -H 'Idempotency-Key: order-1001' -H 'Authorization: Bearer alice' \\\n         \
         -H 'Content-Type: application/json' -d '{{\"amount\": 1000}}'\n\n\
         A service that charges and dies before it answers: -d '{{\"amount\": 1000, \"then\": \"die\"}}' and another key.\n"
    );
    writeln!(out, "{text}")?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminated.recv() => {}
        // The terminal is gone.
        _ = hung_up.recv() => {}
        ended = proxy.wait_for_end() => return ended.and(Err("the proxy has ended".into())),
    }
    proxy.stop().await
}
