//! Traces for an OpenTelemetry collector: which requests belong together, and how long each part of them took.
//!
//! Without a configured collector, no span is created. With one, a request's spans are put into a queue when it has
//! ended, without waiting; spans that do not fit are dropped and counted. `export` sends them to the collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use http::{HeaderMap, HeaderName, HeaderValue};
use oncegate_settings::TraceSampler;
use tokio::sync::mpsc;

pub mod export;
mod protobuf;

/// The field of Trace Context (W3C Recommendation, level 1, section 3.2).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The same, section 3.3.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The number of requests whose spans may wait: enough while a collector restarts, and some MiB at most.
const REQUESTS_WAITING_MAX: usize = 4_096;

/// The ID of a trace, the same in every service that the request passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub [u8; 16]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(pub [u8; 8]);

impl TraceId {
    pub fn hex(self) -> String {
        HEXLOWER.encode(&self.0)
    }
}

/// The content of a request's `traceparent` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    pub trace: TraceId,
    /// The caller's span that has made the request.
    pub span: SpanId,
    /// Whether the caller records the trace.
    pub sampled: bool,
}

impl TraceParent {
    /// Reads a request's `traceparent`. `None` if it is missing, repeated or invalid: then a new trace begins.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => Self::parse(value.as_bytes()),
            _ => None,
        }
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let mut parts = value.trim_ascii().split(|byte| *byte == b'-');
        let version = parse_hex::<1>(parts.next()?)?[0];
        let (trace, span) = (parse_hex::<16>(parts.next()?)?, parse_hex::<8>(parts.next()?)?);
        let flags = parse_hex::<1>(parts.next()?)?[0];
        // Later versions may add parts; version 255 is invalid.
        let is_complete = parts.next().is_none() || version > 0;
        let valid = is_complete && version != 0xff && trace != [0; 16] && span != [0; 8];
        valid.then_some(Self { trace: TraceId(trace), span: SpanId(span), sampled: flags & 1 == 1 })
    }
}

/// Parses exactly `2 * N` lower-case hexadecimal digits.
fn parse_hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    HEXLOWER.decode(digits).ok()?.try_into().ok()
}

/// The position of a request in its trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceContext {
    pub trace: TraceId,
    pub span: SpanId,
    /// The span of the forwarded attempt, which the service behind gets as its parent.
    pub onward: SpanId,
    /// The caller's span, if the request named one.
    pub parent: Option<SpanId>,
    /// The time when the request arrived.
    pub began: SystemTime,
    /// Whether the trace is recorded. The service behind gets its context anyway.
    pub sampled: bool,
}

impl TraceContext {
    /// Continues the request's trace, or begins one. `None` if neither the caller nor Oncegate records it: then its
    /// `traceparent` is forwarded unchanged.
    pub fn continue_or_begin(parent: Option<TraceParent>, sampler: TraceSampler) -> Option<Self> {
        let sampled = |trace: TraceId| match parent {
            Some(parent) if sampler.follows_caller => parent.sampled,
            // The last 64 bits, as in OpenTelemetry's own samplers.
            _ => u128::from_be_bytes(trace.0) % (1 << 64) < sampler.bound,
        };
        if parent.is_some_and(|parent| !parent.sampled && !sampled(parent.trace)) {
            return None;
        }
        let mut random = [0; 32];
        getrandom::fill(&mut random).ok()?;
        let part = |at: usize| SpanId(std::array::from_fn(|byte| random[at + byte]));
        let fresh = TraceId(std::array::from_fn(|byte| random[byte]));
        let (span, onward) = (part(16), part(24));
        let began = SystemTime::now();
        let trace = parent.map_or(fresh, |parent| parent.trace);
        let parent = parent.map(|parent| parent.span);
        Some(Self { trace, span, onward, parent, began, sampled: sampled(trace) })
    }

    pub fn traceparent(&self) -> HeaderValue {
        let flags = u8::from(self.sampled);
        let text = format!("00-{}-{}-0{flags}", self.trace.hex(), HEXLOWER.encode(&self.onward.0));
        HeaderValue::from_str(&text).expect("hex is plain ASCII")
    }

    pub fn new_span_id(&self) -> SpanId {
        let mut random = [0; 8];
        // Without random numbers the ID is all zeros, which is invalid: the collector drops that span.
        let _ = getrandom::fill(&mut random);
        SpanId(random)
    }
}

/// The part of a call that a span describes. The numbers are OTLP's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Work that nobody waits for.
    Internal = 1,
    /// A request to this proxy.
    Server = 2,
    /// A call by this proxy.
    Client = 3,
    /// A message that a broker has brought.
    Consumer = 5,
}

/// The value of a span's attribute. It is never a key, a body, a field's value or a query.
#[derive(Clone, Debug)]
pub enum SpanValue {
    Number(i64),
    Text(Arc<str>),
    Word(&'static str),
}

#[derive(Clone, Debug)]
pub struct Span {
    pub trace: TraceId,
    pub id: SpanId,
    pub parent: Option<SpanId>,
    pub kind: SpanKind,
    pub name: String,
    pub began: SystemTime,
    pub took: Duration,
    pub attributes: Vec<(&'static str, SpanValue)>,
    /// The `error.type` of what has failed.
    pub error: Option<SpanValue>,
}

/// The numbers of exported and dropped spans.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// The spans that the collector has accepted.
    pub exported: AtomicU64,
    /// The spans that found no room in the queue, or that the collector did not accept.
    pub dropped: AtomicU64,
}

impl SpanCounts {
    fn count_dropped(&self, spans: usize) {
        self.dropped.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug)]
pub struct Tracer {
    queue: mpsc::Sender<Vec<Span>>,
    counts: Arc<SpanCounts>,
    pub sampler: TraceSampler,
}

pub struct SpanReceiver {
    queue: mpsc::Receiver<Vec<Span>>,
    counts: Arc<SpanCounts>,
}

/// Creates a span queue and returns its two ends.
pub fn span_queue(counts: &Arc<SpanCounts>, sampler: TraceSampler) -> (Tracer, SpanReceiver) {
    let (sender, receiver) = mpsc::channel(REQUESTS_WAITING_MAX);
    let tracer = Tracer { queue: sender, counts: Arc::clone(counts), sampler };
    (tracer, SpanReceiver { queue: receiver, counts: Arc::clone(counts) })
}

impl Tracer {
    /// Queues the spans of a request that has ended; drops and counts them if the queue is full.
    pub fn send(&self, spans: Vec<Span>) {
        if let Err(error) = self.queue.try_send(spans) {
            self.counts.count_dropped(error.into_inner().len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_parsed_as_the_recommendation_says() {
        let whole = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = TraceParent::parse(whole.as_bytes()).unwrap();
        assert_eq!(parent.trace.hex(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!((HEXLOWER.encode(&parent.span.0).as_str(), parent.sampled), ("b7ad6b7169203331", true));
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
            assert_eq!(TraceParent::parse(text.as_bytes()).map(|parent| parent.sampled), sampled, "{text}");
        }
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, HeaderValue::from_static(whole));
        assert!(TraceParent::from_headers(&headers).is_some());
        headers.append(TRACEPARENT, HeaderValue::from_static(whole));
        assert_eq!(TraceParent::from_headers(&headers), None, "two fields are ambiguous");
    }

    fn sampler(name: &str, ratio: f64) -> TraceSampler {
        TraceSampler::parse(name, ratio).unwrap()
    }

    #[test]
    fn a_trace_keeps_its_id_and_an_unsampled_one_is_left_alone() {
        let parent = TraceParent { trace: TraceId([1; 16]), span: SpanId([2; 8]), sampled: true };
        let begin = |parent| TraceContext::continue_or_begin(parent, TraceSampler::default());
        let context = begin(Some(parent)).unwrap();
        assert_eq!((context.trace, context.parent), (parent.trace, Some(parent.span)));
        assert_ne!(context.span, context.onward);
        let sent = TraceParent::parse(context.traceparent().as_bytes()).unwrap();
        assert_eq!(sent, TraceParent { trace: parent.trace, span: context.onward, sampled: true });
        assert!(begin(Some(TraceParent { sampled: false, ..parent })).is_none());
        let (one, other) = (begin(None).unwrap(), begin(None).unwrap());
        assert_ne!(one.trace, other.trace);
        assert!(one.sampled && other.sampled);
    }

    #[test]
    fn a_sampler_decides_by_the_caller_and_by_the_last_half_of_the_id() {
        let mut id = [0xff; 16];
        id[8..].copy_from_slice(&(u64::MAX / 4).to_be_bytes());
        for (name, ratio, caller, sampled) in [
            ("always_on", 0.0, Some(false), Some(true)),
            ("always_off", 1.0, Some(true), Some(false)),
            ("always_off", 1.0, Some(false), None),
            ("parentbased_always_off", 1.0, Some(true), Some(true)),
            ("parentbased_always_off", 1.0, None, Some(false)),
            ("parentbased_traceidratio", 0.0, Some(true), Some(true)),
            ("parentbased_traceidratio", 1.0, Some(false), None),
            ("traceidratio", 0.26, Some(false), Some(true)),
            ("traceidratio", 0.24, Some(true), Some(false)),
        ] {
            let parent = caller.map(|sampled| TraceParent { trace: TraceId(id), span: SpanId([2; 8]), sampled });
            let context = TraceContext::continue_or_begin(parent, sampler(name, ratio));
            assert_eq!(context.map(|context| context.sampled), sampled, "{name} {ratio} {caller:?}");
            let Some(context) = context else { continue };
            let sent = TraceParent::parse(context.traceparent().as_bytes()).unwrap();
            assert_eq!((Some(sent.sampled), sent.span), (sampled, context.onward), "the service behind learns it");
        }
    }

    #[test]
    fn spans_that_do_not_fit_are_dropped_and_counted() {
        let counts = Arc::new(SpanCounts::default());
        let (tracer, _receiver) = span_queue(&counts, TraceSampler::default());
        for _ in 0..REQUESTS_WAITING_MAX {
            tracer.send(Vec::new());
        }
        let context = TraceContext::continue_or_begin(None, TraceSampler::default()).unwrap();
        let span = Span {
            trace: context.trace,
            id: context.span,
            parent: None,
            kind: SpanKind::Server,
            name: "POST pay".into(),
            began: context.began,
            took: Duration::ZERO,
            attributes: Vec::new(),
            error: None,
        };
        tracer.send(vec![span.clone(), span]);
        assert_eq!(counts.dropped.load(Ordering::Relaxed), 2);
    }
}
