//! A server behind the guard. It answers each request with its method, its target and the length of its body.
//!
//! ```sh
//! cargo run --example server -- 127.0.0.1:8080
//! curl --data hello http://127.0.0.1:8080/pay
//! printf 'POST / HTTP/1.1\r\nHost: h\r\nHost: g\r\n\r\n' | nc 127.0.0.1 8080
//! ```

use std::convert::Infallible;
use std::error::Error;

use framing_guard::{FramingError, FramingTimeouts, GuardedStream, Verdicts, http2};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONNECTION;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".into());
    let listener = TcpListener::bind(address).await?;
    eprintln!("listening on http://{}", listener.local_addr()?);
    loop {
        let (client, _) = listener.accept().await?;
        tokio::spawn(serve(client));
    }
}

async fn serve(client: TcpStream) {
    let (stream, verdicts) = GuardedStream::new(client, FramingTimeouts::default());
    let mut server = auto::Builder::new(TokioExecutor::new());
    // The guard needs both: the README has the reasons.
    server.http1().half_close(true).header_read_timeout(None);
    let service = service_fn(|request| answer(request, verdicts.clone()));
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        eprintln!("a connection failed: {error}");
    }
}

async fn answer(request: Request<Incoming>, verdicts: Verdicts) -> Result<Response<Full<Bytes>>, Infallible> {
    // Before anything else: without the client's request there is nothing to look at.
    let verdict = match request.version() {
        Version::HTTP_2 => http2::check_request(&request),
        _ => verdicts.next(),
    };
    if let Err(error) = verdict {
        return Ok(refuse(error.status(), error.detail()));
    }
    let (head, body) = request.into_parts();
    Ok(match body.collect().await {
        Ok(body) => {
            let length = body.to_bytes().len();
            Response::new(Full::from(format!("{} {}, {length} bytes\n", head.method, head.uri)))
        }
        // The framing turned out wrong behind the head, or the client left.
        Err(error) => match FramingError::found_in(&error) {
            Some(error) => refuse(error.status(), error.detail()),
            None => refuse(StatusCode::BAD_REQUEST, "The request's body is incomplete."),
        },
    })
}

/// Refuses a request and ends its connection: the bytes after it cannot be read as a request.
fn refuse(status: StatusCode, detail: &str) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status).header(CONNECTION, "close");
    response.body(Full::from(format!("{detail}\n"))).expect("a status and a field that are valid")
}
