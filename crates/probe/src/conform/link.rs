//! The lossy link: an HTTP/1.1 server that forwards each request, and loses, cuts, delays or replaces the answer.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};

use super::operations::{LinkAnswer, OperationLog, RequestContent, RequestId};
use super::plan::{LinkRefusal, LinkStep};
use crate::endpoint::ProbedEndpoint;
use crate::response::{ProbedResponse, ProbedResult};
use oncegate_http::protocol::answer_shape::{AnswerShape, RefusedRequest};
use oncegate_http::protocol::refusal::{DifferingParts, Refusal, RetryAfter};

/// A request's body, at most. The link holds it to compare it with its retries.
const BODY_BYTES_MAX: usize = 1024 * 1024;
/// The pages about refusals, which a running instance of Oncegate has at this place.
const PROBLEM_BASE: &str = "/.oncegate/problems/";

type LinkError = Box<dyn std::error::Error + Send + Sync>;
type LinkBody = UnsyncBoxBody<Bytes, LinkError>;

/// The numbers and the form of the link's own answers.
#[derive(Clone)]
pub struct LinkTiming {
    /// The wait of a late answer.
    pub delay: Duration,
    /// The value of `Retry-After` in refusals.
    pub retry_after: RetryAfter,
    /// The form of the refusals.
    pub shape: AnswerShape,
}

pub(crate) struct LinkServer {
    pub(crate) endpoint: ProbedEndpoint,
    pub(crate) timing: LinkTiming,
    pub(crate) address: SocketAddr,
    started: Instant,
    log: Mutex<OperationLog>,
}

impl LinkServer {
    /// Accepts connections in the background. It ends with the runtime.
    pub(crate) fn start(
        listener: TcpListener,
        endpoint: ProbedEndpoint,
        timing: LinkTiming,
        log: OperationLog,
    ) -> std::io::Result<Arc<Self>> {
        let address = listener.local_addr()?;
        let link = Arc::new(Self { endpoint, timing, address, started: Instant::now(), log: Mutex::new(log) });
        let accepting = Arc::clone(&link);
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(Arc::clone(&accepting).serve(stream))),
                    // No file descriptor is free: connections end meanwhile.
                    Err(_) => sleep(Duration::from_millis(50)).await,
                }
            }
        });
        Ok(link)
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, OperationLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let service = service_fn(|request| Arc::clone(&self).answer(request));
        let _ = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
    }

    /// Answers one request. An error closes the connection without a response.
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<LinkBody>, LinkError> {
        let (head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
            let limit = self.refuse(&Refusal::RequestTooLarge(BODY_BYTES_MAX)).await;
            return Ok(respond(limit));
        };
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let content = RequestContent { method: head.method, target, headers: head.headers, body: body.to_bytes() };
        let begun = self.log().begin(&content, self.started.elapsed());
        let Some((id, step)) = begun else { return Ok(respond(self.forward_once(&content).await)) };
        let mut given = AnswerGuard { link: &self, id, answer: LinkAnswer::Abandoned };
        // The service's work goes on without its client.
        let working = tokio::spawn(Arc::clone(&self).execute(id, step, content));
        let response = working.await?;
        let status = response.status;
        let (answer, result) = match step {
            LinkStep::Lose => (LinkAnswer::Lost, Err("the answer is lost".into())),
            LinkStep::Cut(_) if response.body.is_empty() => (LinkAnswer::Lost, Err("there is no body to cut".into())),
            LinkStep::Cut(share) => (LinkAnswer::Cut, Ok(cut(response, share))),
            LinkStep::Refuse(refusal) | LinkStep::ForwardAndRefuse(refusal) => {
                (LinkAnswer::Refused(refusal, status), Ok(respond(response)))
            }
            LinkStep::Pass | LinkStep::Delay | LinkStep::Repeat => (LinkAnswer::Given(status), Ok(respond(response))),
        };
        given.answer = answer;
        result
    }

    /// Does what the plan says, and counts the executions.
    async fn execute(self: Arc<Self>, id: RequestId, step: LinkStep, content: RequestContent) -> ProbedResponse {
        match step {
            LinkStep::Refuse(refusal) => self.refuse_key(refusal).await,
            LinkStep::ForwardAndRefuse(refusal) => {
                self.forward(id, &content).await;
                self.refuse_key(refusal).await
            }
            LinkStep::Repeat => {
                self.forward(id, &content).await;
                self.forward(id, &content).await
            }
            LinkStep::Delay => {
                let response = self.forward(id, &content).await;
                sleep(self.timing.delay).await;
                response
            }
            LinkStep::Pass | LinkStep::Lose | LinkStep::Cut(_) => self.forward(id, &content).await,
        }
    }

    async fn forward(&self, id: RequestId, content: &RequestContent) -> ProbedResponse {
        let response = self.forward_once(content).await;
        self.log().request_mut(id).executions += usize::from(response.is_execution());
        response
    }

    /// Sends a request to the service on a connection of its own.
    async fn forward_once(&self, content: &RequestContent) -> ProbedResponse {
        match self.exchange(content).await {
            Ok(response) => response,
            Err(reason) => self.refuse(&Refusal::UpstreamUnreachable(reason.into())).await,
        }
    }

    async fn exchange(&self, content: &RequestContent) -> ProbedResult {
        let mut request = Request::new(Full::new(content.body.clone()));
        *request.method_mut() = content.method.clone();
        *request.uri_mut() = content.target.parse().map_err(|_| "the target is no path".to_owned())?;
        *request.headers_mut() = end_to_end(&content.headers);
        let host = HeaderValue::from_str(self.endpoint.authority.as_str());
        request.headers_mut().insert(HOST, host.expect("an authority is visible ASCII"));
        let connection = self.endpoint.connect().await?;
        self.endpoint.send(connection, request).await
    }

    async fn refuse_key(&self, refusal: LinkRefusal) -> ProbedResponse {
        let wait = self.timing.retry_after;
        let refusal = match refusal {
            LinkRefusal::InFlight => Refusal::InFlight(wait),
            LinkRefusal::Reused => Refusal::KeyReused(DifferingParts::ANOTHER_OPERATION),
            // As where nothing but a person settles the key.
            LinkRefusal::Unknown => Refusal::OutcomeUnknown(None),
        };
        self.refuse(&refusal).await
    }

    /// Makes an answer as Oncegate makes it.
    async fn refuse(&self, refusal: &Refusal) -> ProbedResponse {
        let (head, body) = self.timing.shape.render(refusal, PROBLEM_BASE, RefusedRequest::default()).into_parts();
        let body = body.collect().await.expect("the body of a refusal is in memory").to_bytes();
        ProbedResponse { status: head.status, headers: head.headers, body }
    }
}

/// Writes down what the client got, also if it has gone before.
struct AnswerGuard<'a> {
    link: &'a LinkServer,
    id: RequestId,
    answer: LinkAnswer,
}

impl Drop for AnswerGuard<'_> {
    fn drop(&mut self) {
        let now = self.link.started.elapsed();
        let mut log = self.link.log();
        let request = log.request_mut(self.id);
        (request.answer, request.answered) = (self.answer, now);
    }
}

/// The fields without those of the connection.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    const HOP_BY_HOP: [HeaderName; 8] = [
        CONNECTION,
        CONTENT_LENGTH,
        EXPECT,
        HeaderName::from_static("keep-alive"),
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    let mut kept = headers.clone();
    HOP_BY_HOP.iter().for_each(|name| drop(kept.remove(name)));
    kept
}

fn respond(response: ProbedResponse) -> Response<LinkBody> {
    let body = Full::new(response.body).map_err(|never: Infallible| match never {}).boxed_unsync();
    with_head(response.status, &response.headers, body)
}

fn with_head(status: StatusCode, headers: &HeaderMap, body: LinkBody) -> Response<LinkBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = end_to_end(headers);
    response
}

/// A response whose body breaks off, with the length of the whole.
fn cut(response: ProbedResponse, share: u8) -> Response<LinkBody> {
    let length = response.body.len();
    let part = response.body.slice(..length * usize::from(share) / 256);
    let end = stream::once(async {
        // hyper sends what it has while the body waits, and drops it with an error.
        sleep(Duration::from_millis(10)).await;
        Err::<Frame<Bytes>, LinkError>("the answer is cut".into())
    });
    let body = stream::once(async { Ok(Frame::data(part)) }).chain(end);
    let mut response = with_head(response.status, &response.headers, StreamBody::new(body).boxed_unsync());
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    response
}
