//! A client that sends exactly the bytes that a test wants, and shows everything it receives.

use std::io;
use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::TEST_TIMEOUT;
use super::wire::{self, Fields, Framing, Head, Wire};

/// Sends each request on a connection of its own.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub address: SocketAddr,
}

impl Client {
    pub fn post(self, path: &str) -> Request {
        self.request("POST", path)
    }

    pub fn get(self, path: &str) -> Request {
        self.request("GET", path)
    }

    pub fn request(self, method: &str, target: &str) -> Request {
        Request {
            client: self,
            method: method.to_owned(),
            target: target.to_owned(),
            host: Some("shop.example".to_owned()),
            fields: Fields::new(),
            body: Vec::new(),
            chunked: false,
            anonymous: false,
        }
    }

    /// Writes these bytes and returns the exchange.
    pub async fn raw(self, bytes: &[u8]) -> Exchange {
        let mut exchange = Exchange::new(self.connect().await, false);
        exchange.write(bytes).await;
        exchange
    }

    pub async fn connect(self) -> TcpStream {
        self.try_connect().await.unwrap()
    }

    pub async fn try_connect(self) -> io::Result<TcpStream> {
        timeout(TEST_TIMEOUT, TcpStream::connect(self.address)).await.expect("connecting takes too long")
    }
}

/// A request under construction.
#[derive(Clone, Debug)]
pub struct Request {
    client: Client,
    method: String,
    target: String,
    host: Option<String>,
    fields: Fields,
    body: Vec<u8>,
    chunked: bool,
    anonymous: bool,
}

/// The caller of requests that say nothing else.
const CALLER: (&str, &str) = ("Authorization", "Bearer test");

impl Request {
    /// Without the field that names the caller by default.
    pub fn anonymous(mut self) -> Self {
        self.anonymous = true;
        self
    }

    /// The default caller of a request to a service that names none itself. Other reads, as of
    /// the admin listener, have none.
    fn caller(&self) -> Option<(&str, &str)> {
        let names_caller = self.anonymous || self.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(CALLER.0));
        let is_read = matches!(&*self.method, "GET" | "HEAD") && !self.target.starts_with("/.oncegate/operations/");
        (!names_caller && !is_read).then_some(CALLER)
    }

    pub fn key(self, key: &str) -> Self {
        self.field("Idempotency-Key", key)
    }

    pub fn host(mut self, host: &str) -> Self {
        self.host = Some(host.to_owned());
        self
    }

    pub fn field(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub fn json(self, body: &str) -> Self {
        self.field("Content-Type", "application/json").body(body)
    }

    /// Sends the body as one chunk, without a Content-Length.
    pub fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    /// The request's bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head();
        if self.chunked {
            if !self.body.is_empty() {
                bytes.extend(format!("{:x}\r\n", self.body.len()).into_bytes());
                bytes.extend(&self.body);
                bytes.extend(b"\r\n");
            }
            bytes.extend(b"0\r\n\r\n");
        } else {
            bytes.extend(&self.body);
        }
        bytes
    }

    /// The request's head.
    pub fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if let Some(host) = &self.host {
            head.push_str(&format!("Host: {host}\r\n"));
        }
        let own = self.fields.iter().map(|(name, value)| (&**name, &**value));
        for (name, value) in self.caller().into_iter().chain(own) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.chunked {
            head.push_str("Transfer-Encoding: chunked\r\n");
        } else if !self.body.is_empty() || self.method == "POST" {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        head.push_str("\r\n");
        wire::bytes(&head)
    }

    /// Returns the response, which must be complete.
    pub async fn send(&self) -> Response {
        self.try_send().await.unwrap()
    }

    pub async fn try_send(&self) -> io::Result<Response> {
        self.open().await?.try_response().await
    }

    /// Sends the request and leaves the response to be read step by step.
    pub async fn open(&self) -> io::Result<Exchange> {
        let mut exchange = Exchange::new(self.client.try_connect().await?, self.method == "HEAD");
        exchange.wire.write(&self.bytes()).await?;
        Ok(exchange)
    }

    /// Sends the request and reads the response meanwhile, as clients do that may be answered early.
    pub async fn upload(&self) -> io::Result<Response> {
        let stream = self.client.try_connect().await?.into_std()?;
        let (mut sending, bytes) = (TcpStream::from_std(stream.try_clone()?)?, self.bytes());
        let sender = tokio::spawn(async move { sending.write_all(&bytes).await });
        let response = Exchange::new(TcpStream::from_std(stream)?, self.method == "HEAD").try_response().await;
        sender.abort();
        response
    }

    /// Sends the head alone and leaves the rest to the test.
    pub async fn open_head(&self) -> Exchange {
        let mut exchange = Exchange::new(self.client.connect().await, self.method == "HEAD");
        exchange.write(&self.head()).await;
        exchange
    }

    /// Sends it from a task of its own.
    pub fn spawn(&self) -> tokio::task::JoinHandle<io::Result<Response>> {
        let request = self.clone();
        tokio::spawn(async move { request.try_send().await })
    }
}

/// A connection with a request on it whose response is being read.
pub struct Exchange {
    wire: Wire,
    head_only: bool,
    framing: Framing,
    trailers: Fields,
}

impl Exchange {
    fn new(stream: TcpStream, head_only: bool) -> Self {
        Self { wire: Wire::new(stream), head_only, framing: Framing::Ended, trailers: Fields::new() }
    }

    /// Sends more of the request, or the next request on this connection.
    pub async fn write(&mut self, bytes: &[u8]) {
        // An early refusal may close the connection during the write; the test checks the bytes that are read
        // afterwards.
        let _ = timeout(TEST_TIMEOUT, self.wire.write(bytes)).await.expect("the proxy does not read on");
    }

    /// Closes the sending side.
    pub async fn finish(&mut self) {
        let _ = self.wire.stream.shutdown().await;
    }

    /// Returns the next head, interim ones included.
    pub async fn any_head(&mut self) -> io::Result<Head> {
        let head = within_test_timeout(self.wire.head()).await?.ok_or(io::ErrorKind::ConnectionReset)?;
        let status = status(&head);
        let bodiless = self.head_only || status < 200 || status == 204 || status == 304;
        self.framing = if bodiless { Framing::Ended } else { head.framing(Framing::UntilClose) };
        Ok(head)
    }

    /// Returns the next piece of the body as it arrives; `None` at its end.
    pub async fn piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        within_test_timeout(self.wire.piece(&mut self.framing, &mut self.trailers)).await
    }

    /// The trailers that have come.
    pub fn trailers(&self) -> Fields {
        self.trailers.clone()
    }

    /// Returns the final response, complete.
    pub async fn try_response(&mut self) -> io::Result<Response> {
        let mut interim = Vec::new();
        let head = loop {
            let head = self.any_head().await?;
            match status(&head) {
                status @ 100..200 => interim.push(status),
                _ => break head,
            }
        };
        self.rest(head, Vec::new()).await.map(|response| Response { interim, ..response })
    }

    /// Returns the response with this head, of whose body these bytes have come already.
    pub async fn rest(&mut self, head: Head, mut body: Vec<u8>) -> io::Result<Response> {
        while let Some(piece) = self.piece().await? {
            body.extend(piece);
        }
        let trailers = std::mem::take(&mut self.trailers);
        Ok(Response { status: status(&head), fields: head.fields, body, trailers, interim: Vec::new() })
    }

    pub async fn response(&mut self) -> Response {
        self.try_response().await.unwrap()
    }

    /// Waits until the other side closes; panics if it sends any byte before.
    pub async fn wait_until_closed(&mut self) {
        let rest = timeout(TEST_TIMEOUT, self.wire.rest()).await.expect("the connection stays open");
        assert!(rest.is_empty(), "more has come: {:?}", wire::text(&rest));
    }
}

async fn within_test_timeout<T>(read: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(TEST_TIMEOUT, read).await.expect("no answer, and no end either")
}

fn status(head: &Head) -> u16 {
    let mut words = head.start.split(' ');
    // An HTTP/1.0 client gets an HTTP/1.0 response.
    assert!(matches!(words.next(), Some("HTTP/1.1" | "HTTP/1.0")), "{}", head.start);
    words.next().unwrap().parse().unwrap()
}

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub fields: Fields,
    pub body: Vec<u8>,
    pub trailers: Fields,
    pub interim: Vec<u16>,
}

impl Response {
    /// The value of a field that may occur once.
    pub fn field(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() < 2, "{name} occurs more than once: {all:?}");
        all.first().copied()
    }

    /// The values of all lines with that name, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        assert_eq!(name, name.to_ascii_lowercase());
        self.fields.iter().filter(|(found, _)| found == name).map(|(_, value)| &**value).collect()
    }

    pub fn text(&self) -> String {
        wire::text(&self.body)
    }

    /// The value of `Oncegate-Status`.
    pub fn oncegate_status(&self) -> Option<&str> {
        self.field("oncegate-status")
    }

    pub fn is_replay(&self) -> bool {
        self.field("idempotent-replayed").is_some()
    }

    /// The problem document.
    pub fn problem(&self) -> serde_json::Value {
        assert_eq!(self.field("content-type"), Some("application/problem+json"), "{self:?}");
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The status, and the problem's slug if the answer is Oncegate's own.
    pub fn outcome(&self) -> (u16, String) {
        let slug = match self.field("content-type") {
            Some("application/problem+json") => self.problem()["code"].as_str().unwrap().to_owned(),
            Some("application/problem+xml") => {
                let text = String::from_utf8_lossy(&self.body);
                text.split("<code>").nth(1).and_then(|rest| rest.split("</code>").next()).unwrap().to_owned()
            }
            // The code stands behind its name and a byte with its length.
            Some("application/cbor") => {
                let at = self.body.windows(5).position(|name| name == b"\x64code").unwrap() + 5;
                let length = usize::from(self.body[at] & 0x1f);
                String::from_utf8(self.body[at + 1..at + 1 + length].to_vec()).unwrap()
            }
            _ => String::new(),
        };
        (self.status, slug)
    }

    /// The expected replay of this response. Names are compared in alphabetical order, values of one name in theirs.
    pub fn replayed(&self) -> Self {
        let mut replay = self.comparable();
        for (name, value) in &mut replay.fields {
            if name == "oncegate-status" {
                *value = "replayed".to_owned();
            }
        }
        replay.fields.push(("idempotent-replayed".to_owned(), "true".to_owned()));
        replay.comparable()
    }

    /// A response that streamed, with the fields that it would have if it had come as a whole: its end tells what its
    /// head could not. One that was joined is a replay. Any other response is as it came.
    pub fn seen_as_whole(mut self) -> Self {
        let has_joined = self.oncegate_status() == Some("attached");
        if !has_joined && self.oncegate_status() != Some("streaming") {
            return self;
        }
        let of_end = |(name, _): &(String, String)| matches!(&**name, "oncegate-status" | "idempotency-key-expires");
        let told: Fields = self.trailers.extract_if(.., |field| of_end(field)).collect();
        if told.is_empty() {
            return self;
        }
        self.fields.retain(|field| !of_end(field) && !matches!(&*field.0, "trailer" | "transfer-encoding"));
        self.fields.push(("content-length".to_owned(), self.body.len().to_string()));
        self.fields.extend(told);
        match self.oncegate_status() {
            Some("executed") if has_joined => self.replayed(),
            Some("unstored") if has_joined => {
                self.fields.push(("idempotent-replayed".to_owned(), "true".to_owned()));
                self
            }
            _ => self,
        }
    }

    /// The response without the fields that differ between answers, in a comparable order.
    pub fn comparable(&self) -> Self {
        let mut response = self.clone();
        response.fields.retain(|(name, _)| !matches!(&**name, "connection" | "date" | "oncegate-original-date"));
        response.fields.sort_by(|(left, _), (right, _)| left.cmp(right));
        response
    }
}
