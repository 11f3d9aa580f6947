//! `oncegate demo`: the whole idea in a few seconds, on one terminal.
//!
//! Nothing is simulated: the proxy is the program started as `oncegate run`, the payments service is a real one that
//! counts its charges, and the requests go over real sockets.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, Response, request};
use http_body_util::Full;
use serde_json::Value;
use tokio::time::timeout;

use oncegate_http::http_connection::HttpConnection;
use payments::Payments;
use proxy::{DemoListeners, DemoProxy, find_free_address};

mod payments;
mod proxy;
mod serve;

pub use serve::serve;

/// The time for a step of the tour: more than any takes.
const STEP_MAX: Duration = Duration::from_secs(15);

/// The reason why the demo has ended early.
pub type DemoError = Box<dyn std::error::Error + Send + Sync>;

/// Runs `program` as the proxy, sends it seven requests, and writes what comes back to `out`.
/// An error: the proxy does not start, or does something else than the text says.
pub async fn tour(program: &Path, out: &mut dyn Write, has_colours: bool) -> Result<(), DemoError> {
    let service = Arc::new(Payments::default());
    let upstream = Arc::clone(&service).start(find_free_address(0)?).await?;
    let (listen, admin) = (find_free_address(0)?, find_free_address(0)?);
    let listeners = DemoListeners { listen, admin, log: "error", has_own_group: false };
    let proxy = DemoProxy::start(program, upstream, &listeners).await?;
    let mut guide = Guide { out, proxy: proxy.address, service: &service, steps: 0, has_colours };

    guide.print(&format!(
        "Oncegate {} listens on {} in front of a payments service on {upstream}.\n\
         The service counts its charges. Oncegate keeps its records in {}.\n",
        env!("CARGO_PKG_VERSION"),
        proxy.address,
        proxy.folder.join("oncegate.db").display(),
    ))?;
    let first = r#"{"amount":1000,"currency":"EUR"}"#;
    guide.print_step("A first attempt is executed, and its response stored.")?;
    guide.send("order-1001", first, (201, "executed", 1)).await?;

    guide.print_step("The answer was lost and the client retries: the stored response again, nothing is charged.")?;
    guide.send("order-1001", r#"{ "currency": "EUR", "amount": 1000.0 }"#, (201, "replayed", 1)).await?;

    guide.print_step("The same key with another amount is a bug of the client: 422.")?;
    guide.send("order-1001", r#"{"amount":9999,"currency":"EUR"}"#, (422, "key-reused", 1)).await?;

    guide.print_step("A duplicate arrives while the first attempt is still running: it is not forwarded.")?;
    let slow = r#"{"amount":2000,"take":"your time"}"#;
    let attempt = tokio::spawn(post(proxy.address, "order-1002", slow));
    timeout(STEP_MAX, service.busy.notified()).await?;
    guide.send("order-1002", slow, (409, "in-flight", 1)).await?;
    service.proceed.notify_one();
    guide.check("(the first attempt ends) ", &timeout(STEP_MAX, attempt).await???, (201, "executed", 2))?;

    let dies = r#"{"amount":3000,"then":"die"}"#;
    guide.print_step("The service charges and dies before it answers. Nobody outside knows, and Oncegate says so.")?;
    guide.send("order-1003", dies, (502, "unknown", 3)).await?;

    guide.print_step("The client retries. A guess would charge twice. Oncegate holds the key until somebody knows.")?;
    guide.send("order-1003", dies, (409, "unknown", 3)).await?;

    guide.print(
        "7 requests, 3 payments wanted, 3 charges made. Put it in front of your own service:\n\
               \n    oncegate run --upstream http://127.0.0.1:3000\n",
    )?;
    proxy.stop().await
}

/// Prints the tour, and checks that the proxy does what the text says.
struct Guide<'a> {
    out: &'a mut dyn Write,
    proxy: SocketAddr,
    service: &'a Payments,
    steps: u32,
    has_colours: bool,
}

/// The status, the `Oncegate-Status`, and the charges of the service so far.
type Expected = (u16, &'static str, usize);

impl Guide<'_> {
    fn print(&mut self, text: &str) -> Result<(), DemoError> {
        Ok(writeln!(self.out, "{text}")?)
    }

    fn print_step(&mut self, text: &str) -> Result<(), DemoError> {
        self.steps += 1;
        let line = self.paint("1", &format!("{}. {text}", self.steps));
        self.print(&line)
    }

    async fn send(&mut self, key: &'static str, body: &'static str, expected: Expected) -> Result<(), DemoError> {
        let shown = self.paint("2", &format!("   -> POST /v1/payments   Idempotency-Key: {key}   {body}"));
        self.print(&shown)?;
        self.check("", &timeout(STEP_MAX, post(self.proxy, key, body)).await??, expected)
    }

    /// Prints a response and checks it: the tour is also a test, and ends with an error where the text is wrong.
    fn check(&mut self, note: &str, response: &Response<Bytes>, expected: Expected) -> Result<(), DemoError> {
        let status = response.status();
        let oncegate_status = response.headers().get("oncegate-status").and_then(|value| value.to_str().ok());
        let oncegate_status = oncegate_status.unwrap_or("-");
        let colour = if status.is_success() { "32" } else { "33" };
        let painted = self.paint(colour, &format!("{} {oncegate_status}", status.as_u16()));
        self.print(&format!("   <- {note}{painted}   {}", summarise(response.body())))?;
        let made = self.service.charges();
        let line = self.paint("36", &format!("      charges made by the service so far: {made}"));
        self.print(&format!("{line}\n"))?;
        if (status.as_u16(), oncegate_status, made) == expected {
            return Ok(());
        }
        let (status, oncegate_status, charges) = expected;
        Err(format!("step {}: expected {status} {oncegate_status} with {charges} charges", self.steps).into())
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.has_colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Returns the body of a service's response as it is, and of a problem the members that a developer reads first.
fn summarise(body: &[u8]) -> String {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| problem[name].as_str();
    match text("code") {
        Some(_) => format!("{}, retry: {}", text("title").unwrap_or_default(), text("retry").unwrap_or_default()),
        None => String::from_utf8_lossy(body).into_owned(),
    }
}

async fn post(proxy: SocketAddr, key: &'static str, body: &'static str) -> Result<Response<Bytes>, DemoError> {
    let request = Request::post("/v1/payments")
        .header("authorization", "Bearer demo")
        .header("content-type", "application/json")
        .header("idempotency-key", key);
    send(proxy, request, body).await
}

/// Sends a request on a connection of its own.
async fn send(
    address: SocketAddr,
    request: request::Builder,
    body: &'static str,
) -> Result<Response<Bytes>, DemoError> {
    let request = request.header(HOST, address.to_string()).body(Full::from(body))?;
    HttpConnection::open(address, None).await?.send(request).await
}
