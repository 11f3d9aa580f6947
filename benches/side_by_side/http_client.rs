//! Single HTTP requests, outside of any load.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a request of JSON, or one without a body. Returns the answer's body, and an error unless the answer is a success.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Result<String, String> {
    let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let message = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n{fields}\r\n{body}",
        body.len()
    );
    exchange(address, &message).map_err(|error| format!("{address}{path}: {error}"))
}

fn exchange(address: SocketAddr, message: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(message.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 20") => Ok(body.to_owned()),
        _ => Err(io::Error::other(format!("not the right answer: {answer:?}"))),
    }
}
