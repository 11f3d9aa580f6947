//! A service that only answers: the fastest one that a proxy could forward to.

use std::net::SocketAddr;
use std::sync::Arc;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::request::BODY;

/// Starts the service on a thread of its own, which ends with the process.
pub fn start() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let fields = "Content-Type: application/json";
    let head = format!("HTTP/1.1 201 Created\r\n{fields}\r\nContent-Length: {}\r\n\r\n", BODY.len());
    let answer: Arc<[u8]> = Arc::from((head + BODY).into_bytes());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer_all(stream, Arc::clone(&answer)));
            }
        });
    });
    address
}

async fn answer_all(mut stream: TcpStream, answer: Arc<[u8]>) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let (mut buffer, mut filled) = (vec![0; 16 * 1024], 0);
    loop {
        match stream.read(&mut buffer[filled..]).await {
            Ok(read) if read > 0 => filled += read,
            _ => return,
        }
        // Every request is a head and the same body.
        let Some(end) = memmem::find(&buffer[..filled], b"\r\n\r\n") else { continue };
        if filled >= end + 4 + BODY.len() {
            filled = 0;
            if stream.write_all(&answer).await.is_err() {
                return;
            }
        }
    }
}
