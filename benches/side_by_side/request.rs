//! The requests of a load and the answers that it must get, as bytes without sockets.

use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;

/// The body of every request and of every answer of the service.
pub const BODY: &str = r#"{"amount":1000,"currency":"EUR","customer":"cus_9s6XKzkNRiz8i3","description":"order 1001"}"#;

/// The path of a request to the service.
pub const SERVICE_PATH: &str = "/v1/payments";

/// The number of keys that are replayed: enough that not a single row or file is measured.
pub const KNOWN_KEYS: u64 = 1000;

/// The kind of requests in a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Without a key: they pass through.
    PassThrough,
    /// Each with a key of its own.
    First,
    /// One for each known key, before replays.
    Seed,
    /// With known keys, answered by Oncegate.
    Replay,
    /// From two connections that send the same keys at the same time.
    Contended,
    /// Each with a key of its own, to a service that keeps the responses itself.
    PeerFirst,
    /// With known keys, to a service that keeps the responses itself.
    PeerReplay,
}

impl Load {
    fn prefix(self) -> Option<&'static str> {
        match self {
            Self::PassThrough => None,
            Self::First | Self::PeerFirst => Some("first"),
            Self::Seed | Self::Replay | Self::PeerReplay => Some("known"),
            Self::Contended => Some("twice"),
        }
    }

    /// Whether an answer is the expected one.
    fn accepts(self, status: u16, head: &[u8]) -> bool {
        let has = |field: &str| memmem::find(head, field.as_bytes()).is_some();
        match self {
            Self::PassThrough | Self::Seed | Self::PeerFirst => status == 201,
            Self::First => status == 201 && has("\r\noncegate-status: executed\r\n"),
            Self::Replay => status == 201 && has("\r\noncegate-status: replayed\r\n"),
            Self::PeerReplay => status == 201 && has("\r\nidempotent-replayed: true\r\n"),
            Self::Contended => match status {
                201 => has("\r\noncegate-status: executed\r\n") || has("\r\noncegate-status: replayed\r\n"),
                409 => has("\r\noncegate-status: in-flight\r\n"),
                _ => false,
            },
        }
    }
}

/// The requests and answers of one connection. The request's bytes are built once; only the key's digits change.
pub struct RequestSequence {
    load: Load,
    /// The number of this connection in its load.
    number: u64,
    /// The number of this load in this process.
    round: u64,
    sent: u64,
    request: Vec<u8>,
    /// The position of the key's 16 digits.
    digits: Option<usize>,
    buffer: Vec<u8>,
    filled: usize,
}

impl RequestSequence {
    pub fn new(load: Load, number: usize, round: u64) -> Self {
        let head = format!("POST {SERVICE_PATH} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer bench\r\n");
        let mut request = head.into_bytes();
        let digits = load.prefix().map(|prefix| {
            request.extend_from_slice(format!("Idempotency-Key: {prefix}-").as_bytes());
            let digits = request.len();
            request.extend_from_slice(b"0000000000000000\r\n");
            digits
        });
        let rest = format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len());
        request.extend_from_slice(rest.as_bytes());
        Self { load, number: number as u64, round, sent: 0, request, digits, buffer: vec![0; 16 * 1024], filled: 0 }
    }

    /// Returns the bytes of the next request.
    pub fn next_request(&mut self) -> &[u8] {
        static NEXT_KEY: AtomicU64 = AtomicU64::new(0);
        let key = match self.load {
            Load::PassThrough => 0,
            Load::First | Load::PeerFirst => NEXT_KEY.fetch_add(1, Ordering::Relaxed),
            Load::Seed => self.sent,
            // Each connection begins at another key.
            Load::Replay | Load::PeerReplay => (self.number * 7919 + self.sent) % KNOWN_KEYS,
            Load::Contended => self.round << 48 | (self.number / 2) << 32 | self.sent,
        };
        if let Some(at) = self.digits {
            for (place, digit) in self.request[at..at + 16].iter_mut().enumerate() {
                *digit = b"0123456789abcdef"[(key >> (60 - 4 * place) & 15) as usize];
            }
        }
        self.sent += 1;
        self.filled = 0;
        &self.request
    }

    /// Returns the buffer for the answer's next bytes.
    pub fn free_buffer(&mut self) -> &mut [u8] {
        &mut self.buffer[self.filled..]
    }

    /// Adds this many received bytes. Returns whether the answer is complete, and an error
    /// if it is not the expected one.
    pub fn add_received(&mut self, bytes: usize) -> Result<bool, String> {
        if bytes == 0 {
            return Err(format!("{:?}: the connection was closed after {:?}", self.load, self.text()));
        }
        self.filled += bytes;
        let received = &self.buffer[..self.filled];
        let Some(end) = memmem::find(received, b"\r\n\r\n") else { return Ok(false) };
        let head = &received[..end + 2];
        let status = head.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        let (Some(status), Some(length)) = (status, content_length(head)) else {
            return Err(format!("{:?}: not an answer of known length: {:?}", self.load, self.text()));
        };
        if !self.load.accepts(status, head) {
            return Err(format!("{:?}: not the right answer: {:?}", self.load, self.text()));
        }
        Ok(self.filled >= end + 4 + length)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.buffer[..self.filled.min(600)]).into_owned()
    }
}

/// Returns the value of `Content-Length`, with its name in either case.
fn content_length(head: &[u8]) -> Option<usize> {
    let value = memmem::find_iter(head, b"ontent-").find_map(|at| {
        let rest = &head[at + "ontent-".len()..];
        rest.strip_prefix(b"length: ").or_else(|| rest.strip_prefix(b"Length: "))
    })?;
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&value[..digits]).ok()?.parse().ok()
}
