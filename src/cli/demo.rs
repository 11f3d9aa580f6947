//! `oncegate demo`: the whole idea in a few seconds, on one terminal.
//!
//! Nothing is simulated: the proxy is this binary started as `oncegate run`, the payments service is a real one that counts
//! its charges, and the requests go over real sockets.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use super::{CommandError, block_on};
use crate::telemetry::colours;
use payments::Payments;
use proxy::{DemoProxy, any_address};

mod payments;
mod proxy;
mod serve;

/// The time for a step of the tour: more than any takes.
const STEP_MAX: Duration = Duration::from_secs(15);

#[derive(Args)]
pub(super) struct DemoArguments {
    /// Keeps the payments service and the proxy running until Ctrl-C, for requests by hand
    #[arg(long)]
    serve: bool,
}

pub(super) fn run(arguments: &DemoArguments) -> Result<(), CommandError> {
    let serve = arguments.serve;
    block_on(async move {
        let done = if serve { serve::serve().await } else { tour().await };
        done.map_err(|error| CommandError::Other(error))
    })
}

type DemoError = Box<dyn std::error::Error + Send + Sync>;

async fn tour() -> Result<(), DemoError> {
    let service = Arc::new(Payments::default());
    let upstream = Arc::clone(&service).start(any_address()).await?;
    let proxy = DemoProxy::start_on_free_ports(upstream).await?;
    let mut guide = Guide::new(proxy.address, &service);

    guide.print(&format!(
        "Oncegate {} listens on {} in front of a payments service on {upstream}.\n\
         The service counts its charges. Oncegate keeps its records in {}.",
        env!("CARGO_PKG_VERSION"),
        proxy.address,
        proxy.store_file().display(),
    ))?;

    guide.print_step("A first attempt is executed, and its response stored.")?;
    let first = guide.send("order-1001", r#"{"amount":1000,"currency":"EUR"}"#).await?;
    guide.expect(&first, StatusCode::CREATED, "executed", 1)?;

    guide.print_step("The answer was lost and the client retries: the stored response again, nothing is charged.")?;
    let again = guide.send("order-1001", r#"{ "currency": "EUR", "amount": 1000.0 }"#).await?;
    guide.expect(&again, StatusCode::CREATED, "replayed", 1)?;

    guide.print_step("The same key with another amount is a bug of the client: 422.")?;
    let other = guide.send("order-1001", r#"{"amount":9999,"currency":"EUR"}"#).await?;
    guide.expect(&other, StatusCode::UNPROCESSABLE_ENTITY, "key-reused", 1)?;

    guide.print_step("A duplicate arrives while the first attempt is still running: it is not forwarded.")?;
    let slow = guide.client.post("order-1002", SLOW);
    let slow = tokio::spawn(slow);
    timeout(STEP_MAX, service.busy.notified()).await?;
    let duplicate = guide.send("order-1002", SLOW).await?;
    guide.expect(&duplicate, StatusCode::CONFLICT, "in-flight", 1)?;
    service.proceed.notify_one();
    let slow = timeout(STEP_MAX, slow).await???;
    guide.print_response("the first attempt ends", &slow)?;
    guide.expect(&slow, StatusCode::CREATED, "executed", 2)?;

    guide.print_step(
        "The service charges and dies before it answers. Nobody can know that from outside, and Oncegate says so.",
    )?;
    let lost = guide.send("order-1003", r#"{"amount":3000,"then":"die"}"#).await?;
    guide.expect(&lost, StatusCode::BAD_GATEWAY, "unknown", 3)?;

    guide.print_step(
        "The client retries. A proxy that guessed would charge twice; Oncegate holds the key until somebody knows.",
    )?;
    let held = guide.send("order-1003", r#"{"amount":3000,"then":"die"}"#).await?;
    guide.expect(&held, StatusCode::CONFLICT, "unknown", 3)?;

    guide.print(
        "7 requests, 3 payments wanted, 3 charges made. Put it in front of your own service:\n\
               \n    oncegate run --upstream http://127.0.0.1:3000",
    )?;
    proxy.stop().await
}

const SLOW: &str = r#"{"amount":2000,"take":"your time"}"#;

/// Prints the tour, and checks that the proxy does what the text says.
struct Guide<'a> {
    client: DemoClient,
    service: &'a Payments,
    steps: u32,
    has_colours: bool,
}

impl<'a> Guide<'a> {
    fn new(proxy: SocketAddr, service: &'a Payments) -> Self {
        Self { client: DemoClient::new(proxy), service, steps: 0, has_colours: colours::are_wanted(&std::io::stdout()) }
    }

    fn print(&self, text: &str) -> Result<(), DemoError> {
        Ok(writeln!(std::io::stdout(), "{text}\n")?)
    }

    fn print_step(&mut self, text: &str) -> Result<(), DemoError> {
        self.steps += 1;
        let title = self.paint("1", &format!("{}. {text}", self.steps));
        Ok(writeln!(std::io::stdout(), "{title}")?)
    }

    async fn send(&self, key: &str, body: &'static str) -> Result<DemoResponse, DemoError> {
        let shown = format!("   -> POST /v1/payments   Idempotency-Key: {key}   {body}");
        writeln!(std::io::stdout(), "{}", self.paint("2", &shown))?;
        let answer = timeout(STEP_MAX, self.client.post(key, body)).await??;
        self.print_response("", &answer)?;
        Ok(answer)
    }

    fn print_response(&self, note: &str, answer: &DemoResponse) -> Result<(), DemoError> {
        let colour = if answer.status.is_success() { "32" } else { "33" };
        let status = self.paint(colour, &format!("{} {}", answer.status.as_u16(), answer.oncegate_status));
        let note = if note.is_empty() { String::new() } else { format!("({note}) ") };
        writeln!(std::io::stdout(), "   <- {note}{status}   {}", answer.summary())?;
        Ok(())
    }

    /// Checks a response: the tour is also a test, and ends with an error where the text is wrong.
    fn expect(
        &self,
        answer: &DemoResponse,
        status: StatusCode,
        oncegate_status: &str,
        charges: usize,
    ) -> Result<(), DemoError> {
        let made = self.service.charges();
        let line = self.paint("36", &format!("      charges made by the service so far: {made}"));
        writeln!(std::io::stdout(), "{line}\n")?;
        if (answer.status, &*answer.oncegate_status, made) == (status, oncegate_status, charges) {
            return Ok(());
        }
        Err(format!("step {}: expected {status} {oncegate_status} with {charges} charges", self.steps).into())
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.has_colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A response of the proxy.
struct DemoResponse {
    status: StatusCode,
    oncegate_status: String,
    body: String,
}

impl DemoResponse {
    /// Returns the body of a service's response as it is, and of a problem the members that a developer reads first.
    fn summary(&self) -> String {
        match serde_json::from_str::<serde_json::Value>(&self.body) {
            Ok(problem) if problem["code"].is_string() => {
                format!("{}, retry: {}", text(&problem["title"]), text(&problem["retry"]))
            }
            _ => self.body.clone(),
        }
    }
}

fn text(value: &serde_json::Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A client that keeps its connections, as clients do.
struct DemoClient {
    client: Client<HttpConnector, Full<Bytes>>,
    proxy: SocketAddr,
}

impl DemoClient {
    fn new(proxy: SocketAddr) -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http(), proxy }
    }

    fn post(
        &self,
        key: &str,
        body: &'static str,
    ) -> impl Future<Output = Result<DemoResponse, DemoError>> + Send + use<> {
        let request = Request::post(format!("http://{}/v1/payments", self.proxy))
            .header("authorization", "Bearer demo")
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Full::from(body));
        let client = self.client.clone();
        async move {
            let (head, body) = client.request(request?).await?.into_parts();
            let oncegate_status =
                head.headers.get("oncegate-status").and_then(|value| value.to_str().ok()).unwrap_or("-");
            let body = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
            Ok(DemoResponse { status: head.status, oncegate_status: oncegate_status.to_owned(), body })
        }
    }
}
