//! HTTP/2 in cleartext with prior knowledge: a client and a service.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use super::{Client, World};

/// A connection that many requests share.
pub async fn connect<B>(world: &World) -> SendRequest<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
{
    connect_to(world.proxy.client()).await
}

/// Another proxy's connection that many requests share.
pub async fn connect_to<B>(client: Client) -> SendRequest<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
{
    let stream = client.connect().await;
    let (mut sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap();
    sender
}

/// A service that speaks only HTTP/2, answers `effect N`, and keeps its requests.
pub struct H2Upstream {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// A request as the service got it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub version: Version,
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: HeaderMap,
}

impl H2Upstream {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let seen = Arc::clone(&upstream.seen);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let seen = Arc::clone(&seen);
                let service = service_fn(move |request| answer(Arc::clone(&seen), request));
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        upstream
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

async fn answer(
    seen: Arc<Mutex<Vec<Seen>>>,
    request: Request<Incoming>,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    // A broken request gets no answer.
    let Ok(body) = body.collect().await else { std::future::pending().await };
    let trailers = body.trailers().cloned().unwrap_or_default();
    let body = body.to_bytes();
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.push(Seen { version: head.version, target: head.uri.to_string(), headers: head.headers, body, trailers });
        seen.len()
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", HeaderValue::from(number));
    let body = Full::from(format!("effect {number}")).with_trailers(async move { Some(Ok(trailers)) });
    Ok(Response::builder().status(201).body(body.map_frame(std::convert::identity::<Frame<Bytes>>)).unwrap())
}
