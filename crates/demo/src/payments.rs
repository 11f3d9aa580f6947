//! A payments service whose requests are not safe to retry.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::DemoError;
use oncegate_domain::urlencoded;

/// The service: `POST /v1/payments` charges, and `GET /v1/payments/by-key?key=KEY` shows all callers' payments.
#[derive(Default)]
pub(super) struct Payments {
    /// The payments as the service answers with them.
    charged: Mutex<Vec<Value>>,
    /// Notified when a slow payment has begun.
    pub(super) busy: Notify,
    /// Lets a slow payment go on.
    pub(super) proceed: Notify,
}

impl Payments {
    /// Starts it in the background. It ends with the process.
    pub(super) async fn start(self: Arc<Self>, address: SocketAddr) -> Result<SocketAddr, DemoError> {
        let listener = TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&self).serve(stream));
            }
        });
        Ok(address)
    }

    pub(super) fn charges(&self) -> usize {
        self.charged.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let service = service_fn(|request| self.answer(request));
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/v1/payments") => self.charge(request).await,
            (&Method::GET, "/v1/payments/by-key") => {
                let query = request.uri().query().unwrap_or_default();
                let key = urlencoded::pairs(query.as_bytes()).find(|(name, _)| name == b"key").map(|(_, value)| value);
                let key = String::from_utf8_lossy(&key.unwrap_or_default()).into_owned();
                let charged = self.charged.lock().unwrap_or_else(PoisonError::into_inner);
                let found: Vec<_> = charged.iter().filter(|payment| payment["for"] == *key).collect();
                Ok(json_response(StatusCode::OK, &json!(found)))
            }
            _ => Ok(json_response(StatusCode::NOT_FOUND, &json!({ "error": "no such page" }))),
        }
    }

    async fn charge(&self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok());
        let key = key.unwrap_or_default().trim_matches('"').to_owned();
        let body = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        let Ok(order) = serde_json::from_slice::<Value>(&body) else {
            return Ok(json_response(StatusCode::BAD_REQUEST, &json!({ "error": "the body is no JSON" })));
        };
        if order["take"].is_string() {
            self.busy.notify_one();
            self.proceed.notified().await;
        }
        let payment = {
            let mut charged = self.charged.lock().unwrap_or_else(PoisonError::into_inner);
            let number = charged.len() + 1;
            charged.push(json!({ "payment": format!("pay_{number}"), "amount": order["amount"], "for": key }));
            charged[number - 1].clone()
        };
        if order["then"] == "die" {
            // hyper then closes the connection without a response.
            return Err(io::Error::other("died after charging"));
        }
        Ok(json_response(StatusCode::CREATED, &payment))
    }
}

fn json_response(status: StatusCode, value: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{value}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}
