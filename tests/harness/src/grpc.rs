//! gRPC over HTTP/2 in cleartext, as its frames show it: a client and a service.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::h2::connect;
use super::{Hold, TEST_TIMEOUT, World};

type Fields = Vec<(&'static str, String)>;

/// A message after its length, not compressed.
pub fn message(text: &str) -> Bytes {
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
    framed.extend_from_slice(text.as_bytes());
    framed.into()
}

/// The service's answer to a call.
#[derive(Clone, Debug)]
pub struct CallAnswer {
    http_status: u16,
    head: Fields,
    message: Option<Bytes>,
    trailers: Fields,
    hold: Option<Hold>,
    /// The frames that the test sends, instead of the message and the trailers.
    fed: Option<Arc<Mutex<FedBody>>>,
}

/// A body whose frames come from a test.
#[derive(Debug)]
pub struct FedBody(mpsc::UnboundedReceiver<Frame<Bytes>>);

impl Body for FedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

impl CallAnswer {
    /// A head at once, and frames as the test sends them; the end when it drops the sender.
    pub fn fed() -> (Self, mpsc::UnboundedSender<Frame<Bytes>>) {
        let (sender, frames) = mpsc::unbounded_channel();
        (Self { fed: Some(Arc::new(Mutex::new(FedBody(frames)))), ..Self::status(0).without_status() }, sender)
    }

    /// A message, and a status behind it.
    pub fn message(text: &str, code: u8) -> Self {
        let trailers = vec![("grpc-status", code.to_string())];
        Self { http_status: 200, head: Vec::new(), message: Some(message(text)), trailers, hold: None, fed: None }
    }

    /// A status in the head, and nothing behind it.
    pub fn trailers_only(code: u8) -> Self {
        let head = vec![("grpc-status", code.to_string())];
        Self { http_status: 200, head, message: None, trailers: Vec::new(), hold: None, fed: None }
    }

    /// A status in trailers that follow no message.
    pub fn status(code: u8) -> Self {
        Self { message: None, ..Self::message("", code) }
    }

    /// The same without any status.
    pub fn without_status(self) -> Self {
        Self { head: Vec::new(), trailers: Vec::new(), ..self }
    }

    /// The same with another status of HTTP.
    pub fn http_status(self, http_status: u16) -> Self {
        Self { http_status, ..self }
    }

    pub fn head(mut self, name: &'static str, value: &str) -> Self {
        self.head.push((name, value.to_owned()));
        self
    }

    pub fn trailer(mut self, name: &'static str, value: &str) -> Self {
        self.trailers.push((name, value.to_owned()));
        self
    }

    /// Waits before anything is sent.
    pub fn hold(self, hold: &Hold) -> Self {
        Self { hold: Some(hold.clone()), ..self }
    }
}

/// A service that answers calls as a test tells it, else with `effect N`, and keeps their metadata.
pub struct CallService {
    pub address: SocketAddr,
    script: Arc<Mutex<VecDeque<CallAnswer>>>,
    seen: watch::Sender<Vec<HeaderMap>>,
}

impl CallService {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (script, seen) = (Arc::<Mutex<VecDeque<_>>>::default(), watch::Sender::default());
        let service = Self { address, script: Arc::clone(&script), seen: seen.clone() };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (script, seen) = (Arc::clone(&script), seen.clone());
                let answer = service_fn(move |request| answer(Arc::clone(&script), seen.clone(), request));
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), answer);
                tokio::spawn(connection);
            }
        });
        service
    }

    /// The URL of this service.
    pub fn url(&self) -> String {
        format!("h2c://{}", self.address)
    }

    /// Sets the answer to the next call that has none yet.
    pub fn then(&self, answer: CallAnswer) -> &Self {
        self.script.lock().unwrap().push_back(answer);
        self
    }

    /// The metadata of all calls so far.
    pub fn calls(&self) -> Vec<HeaderMap> {
        self.seen.borrow().clone()
    }

    /// Waits until this many calls have come.
    pub async fn wait_for_calls(&self, count: usize) {
        let mut seen = self.seen.subscribe();
        timeout(TEST_TIMEOUT, seen.wait_for(|seen| seen.len() >= count)).await.unwrap().unwrap();
    }
}

async fn answer(
    script: Arc<Mutex<VecDeque<CallAnswer>>>,
    seen: watch::Sender<Vec<HeaderMap>>,
    request: Request<Incoming>,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    // A broken request gets no answer.
    let Ok(_) = body.collect().await else { std::future::pending().await };
    seen.send_modify(|seen| seen.push(head.headers));
    let number = seen.borrow().len();
    let scripted = script.lock().unwrap().pop_front();
    let answer = scripted.unwrap_or_else(|| CallAnswer::message(&format!("effect {number}"), 0));
    if let Some(hold) = &answer.hold {
        hold.wait().await;
    }
    let mut response = Response::builder().status(answer.http_status);
    if answer.head.iter().all(|(name, _)| *name != "content-type") {
        response = response.header("content-type", "application/grpc");
    }
    for (name, value) in &answer.head {
        response = response.header(*name, value);
    }
    if let Some(fed) = answer.fed {
        let fed = std::mem::replace(&mut *fed.lock().unwrap(), FedBody(mpsc::unbounded_channel().1));
        return Ok(response.body(fed.boxed_unsync()).unwrap());
    }
    let body = Full::new(answer.message.unwrap_or_default());
    let body = match answer.trailers.is_empty() {
        true => body.boxed_unsync(),
        false => {
            let field = |(name, value): (&'static str, String)| {
                (HeaderName::from_static(name), HeaderValue::try_from(value).unwrap())
            };
            let trailers = answer.trailers.into_iter().map(field).collect();
            body.with_trailers(async move { Some(Ok(trailers)) }).boxed_unsync()
        }
    };
    Ok(response.body(body).unwrap())
}

/// A client of the proxy.
pub struct Caller(SendRequest<Full<Bytes>>);

/// A call's answer as a client gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallResult {
    pub http_status: StatusCode,
    pub head: HeaderMap,
    /// Whether the head was all.
    pub is_trailers_only: bool,
    pub message: Bytes,
    pub trailers: HeaderMap,
}

impl Caller {
    pub async fn new(world: &World) -> Self {
        Self(connect(world).await)
    }

    /// Calls `/pay` with a key and with this message.
    pub async fn pay(&mut self, key: &str, text: &str) -> CallResult {
        self.call(Self::request(Some(key), text)).await.unwrap()
    }

    /// The call of [`Self::pay`].
    pub fn request(key: Option<&str>, text: &str) -> Request<Full<Bytes>> {
        let request = Request::post("http://shop.example/pay")
            .header("content-type", "application/grpc+proto")
            .header("te", "trailers")
            .header("authorization", "Bearer test");
        let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
        request.body(Full::new(message(text))).unwrap()
    }

    /// Makes a call, and leaves the body of its response to be read.
    pub async fn open(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.0.ready().await.unwrap();
        timeout(TEST_TIMEOUT, self.0.send_request(request)).await.unwrap().unwrap()
    }

    /// Makes a call; the error of one whose response broke off.
    pub async fn call(&mut self, request: Request<Full<Bytes>>) -> Result<CallResult, hyper::Error> {
        self.0.ready().await?;
        let response = timeout(TEST_TIMEOUT, self.0.send_request(request)).await.unwrap()?;
        let (head, body) = response.into_parts();
        let is_trailers_only = body.is_end_stream();
        let whole = timeout(TEST_TIMEOUT, body.collect()).await.unwrap()?;
        let trailers = whole.trailers().cloned().unwrap_or_default();
        let message = whole.to_bytes();
        Ok(CallResult { http_status: head.status, head: head.headers, is_trailers_only, message, trailers })
    }
}

impl CallResult {
    /// The value of a field in the head.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.get(name).map(|value| value.to_str().unwrap())
    }

    /// The status of the call, as a client reads it.
    pub fn code(&self) -> u8 {
        assert_eq!(self.http_status, StatusCode::OK, "{self:?}");
        let fields = if self.is_trailers_only { &self.head } else { &self.trailers };
        fields["grpc-status"].to_str().unwrap().parse().unwrap()
    }

    pub fn oncegate_status(&self) -> &str {
        self.field("oncegate-status").unwrap()
    }

    /// The status and the problem of a refusal, and its pushback.
    pub fn refusal(&self) -> (u8, &str, Option<&str>) {
        assert!(self.is_trailers_only, "{self:?}");
        assert_eq!(self.field("content-type"), Some("application/grpc"));
        let slug = self.field("grpc-message").unwrap().split_once(": ").unwrap().0;
        (self.code(), slug, self.field("grpc-retry-pushback-ms"))
    }
}
