//! Traces for an OpenTelemetry collector: which requests belong together, and how long each part of them took.
//!
//! Where none is configured, nothing here is made or looked at. Where one is, a request's spans are put into a queue when
//! it is over, without waiting: what does not fit is dropped and counted. `export` sends them on.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::mpsc;

pub mod export;
mod protobuf;

/// Of Trace Context (W3C Recommendation, level 1, section 3.2).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Requests whose spans may wait to be sent: some seconds' worth while a collector restarts, some MiB at most.
const REQUESTS_WAITING_MAX: usize = 4_096;

/// The name of a trace, the same in every service that a request comes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub [u8; 16]);

/// The name of a span within its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(pub [u8; 8]);

impl TraceId {
    /// In hex, as it stands in logs.
    pub fn hex(self) -> String {
        hex(&self.0)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What a request says of the trace that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The trace.
    pub trace: TraceId,
    /// The span that has made the request.
    pub span: SpanId,
    /// Whether the one who asks records it.
    pub sampled: bool,
}

impl Parent {
    /// From a request's `traceparent`; `None` where there is none, or none that can be read: then a trace begins anew.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => Self::parse(value.as_bytes()),
            _ => None,
        }
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let mut parts = value.trim_ascii().split(|byte| *byte == b'-');
        let version = bytes::<1>(parts.next()?)?[0];
        let (trace, span) = (bytes::<16>(parts.next()?)?, bytes::<8>(parts.next()?)?);
        let flags = bytes::<1>(parts.next()?)?[0];
        // Later versions may say more behind it; 255 is none.
        let whole = parts.next().is_none() || version > 0;
        let valid = whole && version != 0xff && trace != [0; 16] && span != [0; 8];
        valid.then_some(Self { trace: TraceId(trace), span: SpanId(span), sampled: flags & 1 == 1 })
    }
}

/// So many bytes, in small hexadecimal digits and nothing else.
fn bytes<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// A request's own place in its trace.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The trace.
    pub trace: TraceId,
    /// The request's span, as the service behind is told.
    pub span: SpanId,
    /// Of the attempt that is forwarded.
    pub onward: SpanId,
    /// Who has asked, if it has said so.
    pub parent: Option<SpanId>,
    /// When it came in.
    pub began: SystemTime,
}

impl Context {
    /// Goes on with the trace that the request came with, or begins one. `None` where the one who asks does not record
    /// the trace: then nobody behind it does, and its `traceparent` goes on as it is.
    pub fn of(parent: Option<Parent>) -> Option<Self> {
        if parent.is_some_and(|parent| !parent.sampled) {
            return None;
        }
        let mut random = [0; 32];
        getrandom::fill(&mut random).ok()?;
        let part = |at: usize| SpanId(std::array::from_fn(|byte| random[at + byte]));
        let fresh = TraceId(std::array::from_fn(|byte| random[byte]));
        let (span, onward) = (part(16), part(24));
        let began = SystemTime::now();
        let trace = parent.map_or(fresh, |parent| parent.trace);
        Some(Self { trace, span, onward, parent: parent.map(|parent| parent.span), began })
    }

    /// What the service behind is told.
    pub fn traceparent(&self) -> HeaderValue {
        let text = format!("00-{}-{}-01", self.trace.hex(), hex(&self.onward.0));
        HeaderValue::from_str(&text).expect("hex is plain ASCII")
    }

    /// A name for another span of the trace.
    pub fn another(&self) -> SpanId {
        let mut random = [0; 8];
        // Zeros would be no name; a span that cannot be named is of no use to anybody either.
        let _ = getrandom::fill(&mut random);
        SpanId(random)
    }
}

/// On which side of a call a span stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Somebody has asked us.
    Server = 2,
    /// We ask somebody.
    Client = 3,
}

/// What is said of a span. Never a key, a body, a field's value or a query.
#[derive(Clone, Debug)]
pub enum Value {
    /// A number.
    Number(i64),
    /// A name out of the configuration.
    Name(Arc<str>),
    /// A word of ours.
    Word(&'static str),
}

/// A part of a request, over.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its trace.
    pub trace: TraceId,
    /// Its name in the trace.
    pub id: SpanId,
    /// What it is a part of.
    pub parent: Option<SpanId>,
    /// On which side it stands.
    pub kind: Kind,
    /// What was done.
    pub name: String,
    /// When it began.
    pub began: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// What is said of it.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whether it came to nothing.
    pub failed: bool,
}

/// How many spans were sent, and how many not.
#[derive(Debug, Default)]
pub struct Tally {
    /// The collector has taken them.
    pub exported: AtomicU64,
    /// There was no room, or the collector did not take them.
    pub dropped: AtomicU64,
}

impl Tally {
    fn lost(&self, spans: usize) {
        self.dropped.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

/// Where spans are put.
#[derive(Clone, Debug)]
pub struct Tracer {
    queue: mpsc::Sender<Vec<Span>>,
    tally: Arc<Tally>,
}

/// What is to be sent.
pub struct Waiting {
    queue: mpsc::Receiver<Vec<Span>>,
    tally: Arc<Tally>,
}

/// A queue, and its two ends.
pub fn queue(tally: &Arc<Tally>) -> (Tracer, Waiting) {
    let (sender, receiver) = mpsc::channel(REQUESTS_WAITING_MAX);
    (Tracer { queue: sender, tally: Arc::clone(tally) }, Waiting { queue: receiver, tally: Arc::clone(tally) })
}

impl Tracer {
    /// A request is over, and these are its spans.
    pub fn tell(&self, spans: Vec<Span>) {
        if let Err(error) = self.queue.try_send(spans) {
            self.tally.lost(error.into_inner().len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_the_recommendation_has_it() {
        let whole = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = Parent::parse(whole.as_bytes()).unwrap();
        assert_eq!(parent.trace.hex(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!((hex(&parent.span.0).as_str(), parent.sampled), ("b7ad6b7169203331", true));
        for (text, sampled) in [
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", Some(false)),
            ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-what-else", Some(true)),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", None),
            ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
            ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", None),
            ("", None),
        ] {
            assert_eq!(Parent::parse(text.as_bytes()).map(|parent| parent.sampled), sampled, "{text}");
        }
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, HeaderValue::from_static(whole));
        assert!(Parent::of(&headers).is_some());
        headers.append(TRACEPARENT, HeaderValue::from_static(whole));
        assert_eq!(Parent::of(&headers), None, "which of two counts is anybody's guess");
    }

    #[test]
    fn a_trace_goes_on_under_its_own_name_and_one_that_nobody_records_is_left_alone() {
        let parent = Parent { trace: TraceId([1; 16]), span: SpanId([2; 8]), sampled: true };
        let context = Context::of(Some(parent)).unwrap();
        assert_eq!((context.trace, context.parent), (parent.trace, Some(parent.span)));
        assert_ne!(context.span, context.onward);
        let told = Parent::parse(context.traceparent().as_bytes()).unwrap();
        assert_eq!(told, Parent { trace: parent.trace, span: context.onward, sampled: true });
        assert!(Context::of(Some(Parent { sampled: false, ..parent })).is_none());
        let (one, other) = (Context::of(None).unwrap(), Context::of(None).unwrap());
        assert_ne!(one.trace, other.trace);
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let tally = Arc::new(Tally::default());
        let (tracer, _waiting) = queue(&tally);
        for _ in 0..REQUESTS_WAITING_MAX {
            tracer.tell(Vec::new());
        }
        let context = Context::of(None).unwrap();
        let span = Span {
            trace: context.trace,
            id: context.span,
            parent: None,
            kind: Kind::Server,
            name: "POST pay".into(),
            began: context.began,
            took: Duration::ZERO,
            attributes: Vec::new(),
            failed: false,
        };
        tracer.tell(vec![span.clone(), span]);
        assert_eq!(tally.dropped.load(Ordering::Relaxed), 2);
    }
}
