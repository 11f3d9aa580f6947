//! HTTP/1.1 as bytes: enough to send exactly a test's bytes, and to see exactly the bytes received.

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Field lines in their order, names in lower case. Each byte over 0x7F is the character with that number.
pub type Fields = Vec<(String, String)>;

/// A connection, and the bytes that were read and not used yet.
pub struct Wire {
    pub stream: TcpStream,
    unread: Vec<u8>,
}

/// A message's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub start: String,
    pub fields: Fields,
}

/// The end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// It has ended, or there is no body.
    Ended,
    Length(usize),
    Chunked,
    UntilClose,
}

impl Wire {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, unread: Vec::new() }
    }

    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Waits for the next byte without consuming it; false at the end of the stream.
    pub async fn has_more(&mut self) -> Result<bool> {
        Ok(!self.unread.is_empty() || self.fill().await? > 0)
    }

    /// Returns the next head; `None` if the stream ends before its first byte.
    pub async fn head(&mut self) -> Result<Option<Head>> {
        if !self.has_more().await? {
            return Ok(None);
        }
        let start = self.line().await?;
        let mut fields = Fields::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok(Some(Head { start, fields }));
            }
            fields.push(field(&line)?);
        }
    }

    /// Returns the next piece of a body as it arrives; `None` at its end. Trailers are added to `trailers`.
    pub async fn piece(&mut self, framing: &mut Framing, trailers: &mut Fields) -> Result<Option<Vec<u8>>> {
        match *framing {
            Framing::Ended => Ok(None),
            Framing::Length(0) => {
                *framing = Framing::Ended;
                Ok(None)
            }
            Framing::Length(left) => {
                if !self.has_more().await? {
                    return Err(cut());
                }
                let taken = left.min(self.unread.len());
                *framing = Framing::Length(left - taken);
                Ok(Some(self.unread.drain(..taken).collect()))
            }
            Framing::Chunked => {
                let size = self.line().await?;
                let size =
                    usize::from_str_radix(size.split(';').next().unwrap().trim(), 16).map_err(|_| garbage(&size))?;
                if size > 0 {
                    let data = self.exactly(size).await?;
                    return if self.line().await?.is_empty() { Ok(Some(data)) } else { Err(garbage("a chunk's end")) };
                }
                loop {
                    let line = self.line().await?;
                    if line.is_empty() {
                        *framing = Framing::Ended;
                        return Ok(None);
                    }
                    trailers.push(field(&line)?);
                }
            }
            Framing::UntilClose => {
                if self.has_more().await? {
                    return Ok(Some(std::mem::take(&mut self.unread)));
                }
                *framing = Framing::Ended;
                Ok(None)
            }
        }
    }

    /// Returns all bytes until the stream ends in any way.
    pub async fn rest(&mut self) -> Vec<u8> {
        while self.fill().await.is_ok_and(|read| read > 0) {}
        std::mem::take(&mut self.unread)
    }

    async fn exactly(&mut self, length: usize) -> Result<Vec<u8>> {
        while self.unread.len() < length {
            if self.fill().await? == 0 {
                return Err(cut());
            }
        }
        Ok(self.unread.drain(..length).collect())
    }

    async fn line(&mut self) -> Result<String> {
        let mut seen = 0;
        loop {
            if let Some(at) = self.unread[seen..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=seen + at).collect();
                return Ok(text(line.strip_suffix(b"\r\n").ok_or_else(|| garbage("a bare LF"))?));
            }
            seen = self.unread.len();
            if self.fill().await? == 0 {
                return Err(cut());
            }
        }
    }

    async fn fill(&mut self) -> Result<usize> {
        self.unread.reserve(64 * 1024);
        self.stream.read_buf(&mut self.unread).await
    }
}

impl Head {
    /// The framing of a request's body, or of a response's if its status allows one.
    pub fn framing(&self, otherwise: Framing) -> Framing {
        if self.all("transfer-encoding").next().is_some() {
            return Framing::Chunked;
        }
        self.all("content-length").next().map_or(otherwise, |length| Framing::Length(length.parse().unwrap()))
    }

    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.fields.iter().filter(move |(found, _)| found == name).map(|(_, value)| &**value)
    }
}

fn field(line: &str) -> Result<(String, String)> {
    let (name, value) = line.split_once(':').ok_or_else(|| garbage(line))?;
    Ok((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()))
}

/// Maps each byte to the character with its number, so that nothing is lost.
pub fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The reverse of [`text`].
pub fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|character| u8::try_from(u32::from(character)).unwrap()).collect()
}

fn cut() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the message is cut off")
}

fn garbage(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("this is no HTTP: {what:?}"))
}
