//! The table of all refusals: each row has all that is fixed about one, and the texts of its page.

use std::borrow::Cow;

use super::ClientAction::{Fix, NewKey, Reconcile, SameKey};
use super::{ClientAction, DifferingParts, Refusal, RetryAfter};
use crate::protocol::status::OncegateStatus;
use oncegate_domain::grpc_status::GrpcStatus;

/// A refusal in all its forms. In the texts of the page, text between backticks is code.
pub struct RefusalRow<'a> {
    pub status: u16,
    /// The name for the problem's type, its label in metrics and its page.
    pub slug: &'static str,
    /// The client's next step.
    pub action: ClientAction,
    /// The time after which the client may ask again; `None` where the answer names none.
    pub retry_after: Option<RetryAfter>,
    /// The status of a refused call. Retry policies name `UNAVAILABLE`, so it is the status of refusals that invite a
    /// retry with the same key, and of no other.
    pub grpc: GrpcStatus,
    /// The `Oncegate-Status` of the answer on a guarded route.
    pub oncegate_status: OncegateStatus,
    pub title: &'static str,
    /// The problem's detail: what is wrong, in one to three sentences.
    pub detail: Cow<'a, str>,
    /// The page: the cause, for a reader who does not know Oncegate.
    pub means: &'static str,
    /// The page: whether the operation may have been executed, a client's first question.
    pub executed: &'static str,
    /// The page: the client's next step.
    pub client: &'static str,
    /// The page: the operator's next step.
    pub operator: &'static str,
}

const DUPLICATE_SUSPECTED: &str = "You have sent an equal request under another key a short while ago. This one was not executed. If it \
     is a retry, use the first key. If it is another operation, send it again with `Oncegate-Confirm: ` and the record in \
     `Oncegate-Duplicate-Of`.";

fn describe_reuse(differing: &DifferingParts) -> String {
    let advice = match (differing.is_another_operation(), differing.option_to_write()) {
        (true, _) => {
            "A new operation needs a new key; a retry must repeat the first request unchanged.".into()
        }
        (false, Some(option)) => format!(
            "Such parts change with each try, and a retry must repeat the first request unchanged. If it cannot, its route \
             should leave them out of the comparison, which then holds for new keys: {option}."
        ),
        (false, None) => "That one may have been executed. If this is a retry of it, send it as it was sent \
                                     first, with its body, and with its key spelled as it was first. Only a new operation \
                                     needs a new key."
            .into(),
    };
    format!("{} {advice}", differing.sentence())
}

/// The pause where nothing says how long it will be.
const SOON: Option<RetryAfter> = Some(RetryAfter(1));

impl Refusal {
    /// The whole error contract in one table.
    #[rustfmt::skip]
    pub fn row(&self) -> RefusalRow<'_> {
        match self {
        Self::AuthorizeUnavailable => RefusalRow {
            status: 503, slug: "authorize-unavailable", action: SameKey, retry_after: SOON,
            grpc: GrpcStatus::Unavailable, oncegate_status: OncegateStatus::Rejected,
            title: "The response cannot be replayed at the moment",
            detail: "Whether you may read the stored response could not be checked. This request was not executed; an \
                     earlier one with this key was. Send the same request with the same key again after \
                     Retry-After.".into(),
            means: "The operation was executed before, and its response is stored. The service that says whether the \
                    caller may read it gave no usable answer.",
            executed: "Before, once. Not again.",
            client: "Send the same request with the same key again, after `Retry-After`.",
            operator: "Look at the service that `replay.authorize` names. The log has the reason.",
        },
        Self::BadRequest(status, detail) => RefusalRow {
            status: status.as_u16(), slug: "bad-request", action: Fix, retry_after: None,
            grpc: GrpcStatus::InvalidArgument, oncegate_status: OncegateStatus::Rejected,
            title: "The request cannot be forwarded",
            detail: (*detail).into(),
            means: "The request violates HTTP, or it is ambiguous about its end or its target. Two programs could read \
                    two different requests in it, so it is refused and not repaired. A head that is too large gets \
                    status 431, an unknown transfer coding 501.",
            executed: "No. The request was not forwarded.",
            client: "Correct the request: `detail` says what is wrong. The same key may be used. If the answer says \
                     `Connection: close`, the request's end could not be found, and the connection is closed.",
            operator: "Browsers and HTTP libraries do not send such requests. Look at the programs between the client \
                       and this proxy: for example a gateway that sends both `Content-Length` and `Transfer-Encoding`, \
                       or no `Host`. If there is none, somebody may be trying to smuggle requests.",
        },
        Self::Draining => RefusalRow {
            status: 503, slug: "draining", action: SameKey, retry_after: SOON,
            grpc: GrpcStatus::Unavailable, oncegate_status: OncegateStatus::Rejected,
            title: "This instance is stopping",
            detail: "This request was not executed; an earlier one with this key may have been. Send the same request \
                     with the same key again; another instance will handle it.".into(),
            means: "This instance of the proxy is stopping, and starts nothing new.",
            executed: "Nothing of this request was forwarded. An earlier one with this key may have been executed.",
            client: "Send the same request with the same key again, after `Retry-After` and on a new connection. \
                     Another instance will handle it.",
            operator: "Nothing, if it lasts seconds. If clients see it at every deployment, the load balancer keeps \
                       sending requests to an instance whose `/readyz` already fails: raise `drain_delay` above the \
                       time that the load balancer takes to notice.",
        },
        Self::DuplicateSuspected(earlier) => RefusalRow {
            status: 409, slug: "duplicate-suspected", action: Fix, retry_after: None,
            grpc: GrpcStatus::FailedPrecondition, oncegate_status: OncegateStatus::Rejected,
            title: "An equal request was sent under another key",
            detail: match earlier.as_deref() {
                None => DUPLICATE_SUSPECTED.into(),
                Some((record, None)) => format!("{DUPLICATE_SUSPECTED} The earlier request is {record}.").into(),
                Some((record, Some(_))) => format!("{DUPLICATE_SUSPECTED} The earlier request is {record}; `Link` leads to its \
                                                    outcome.").into(),
            },
            means: "The same caller has sent the same request a short while ago, under another key. That is what a client does which \
                    makes a new key for each retry.",
            executed: "This request was not executed. The earlier one was, or may have been.",
            client: "If this is a retry, do not send it again: `Link` leads to the outcome of the first request, and a retry with the \
                     first key gets its response. If it is a second operation that happens to be equal, send it again under its own \
                     key with `Oncegate-Confirm` and the value of `Oncegate-Duplicate-Of`.",
            operator: "The route has `same_body = \"refuse\"`. Repair the client: it must make the key once for an operation, and \
                       keep it for all retries. If equal operations are common here, write `\"warn\"`, or shorten \
                       `same_body_window`.",
        },
        Self::InFlight(wait) => RefusalRow {
            status: 409, slug: "in-flight", action: SameKey, retry_after: Some(*wait),
            grpc: GrpcStatus::Unavailable, oncegate_status: OncegateStatus::InFlight,
            title: "The first attempt is still running",
            detail: "A request with this key is being executed. Send the same request with the same key again after \
                     Retry-After.".into(),
            means: "A request with this key is being executed at this moment. A second one would be a second \
                    execution.",
            executed: "The first request is being executed. This one was not executed, and will not be.",
            client: "Wait for `Retry-After`, and send the same request with the same key again. It gets the response \
                     of the first attempt, or becomes the next attempt if the first one turns out not to have been \
                     executed.",
            operator: "Clients that often get this answer give up before the service has answered: compare their \
                       timeout with the time that the service takes. An attempt lasts no longer than the route's \
                       `upstream_timeout`.",
        },
        Self::IssuerUnavailable => RefusalRow {
            status: 503, slug: "issuer-unavailable", action: SameKey, retry_after: SOON,
            grpc: GrpcStatus::Unavailable, oncegate_status: OncegateStatus::Rejected,
            title: "The token cannot be verified at the moment",
            detail: "The keys of the token's issuer have not been read yet. This request was not executed; an earlier \
                     one with this key may have been. Send the same request with the same key again after \
                     Retry-After.".into(),
            means: "The route identifies callers by their token. This instance of the proxy has not been able to read \
                    the keys of the token's issuer since it started, so it cannot verify any token.",
            executed: "This request was not forwarded, and the store was not asked. An earlier one with this key may \
                       have been executed.",
            client: "Send the same request with the same key again, after `Retry-After`.",
            operator: "Look at the place that `jwt.jwks` or the issuer's description names: the log has the reason why \
                       it cannot be read. The proxy tries again every 30 seconds at least.",
        },
        Self::KeyExpired => RefusalRow {
            status: 410, slug: "key-expired", action: NewKey, retry_after: None,
            // Not ALREADY_EXISTS: a client may take that for the success of an earlier attempt.
            grpc: GrpcStatus::FailedPrecondition, oncegate_status: OncegateStatus::Rejected,
            title: "The key has expired",
            detail: "An earlier request with this key may have been executed. Oncegate no longer has its outcome: the \
                     TTL of the key has ended, or an operator has removed it. This request was not executed. A new \
                     operation needs a new key.".into(),
            means: "The outcome of this key is no longer stored: its TTL has ended, and this route remembers expired \
                    keys so that a very late retry is not treated as a new request. Or, for an operation, an operator \
                    has removed the key.",
            executed: "An earlier request with this key may have been executed. This one was not.",
            client: "Do not send the request again with another key before you know how the first one ended: ask the \
                     service. A new operation needs a new key.",
            operator: "The route has `after_ttl = \"refuse\"`. Clients that retry after the `ttl` keep their requests \
                       for too long, or the `ttl` is too short for them.",
        },
        Self::KeyInvalid(detail) => RefusalRow {
            status: 400, slug: "key-invalid", action: Fix, retry_after: None,
            grpc: GrpcStatus::InvalidArgument, oncegate_status: OncegateStatus::Rejected,
            title: "The idempotency key cannot be used",
            detail: (*detail).into(),
            means: "The request has a key that cannot be used: it is empty, too long or too short, has a character \
                    that is not allowed, or was sent more than once. Or the key is in the body, and the body cannot be \
                    read as the format that it should have.",
            executed: "No. The request was not forwarded.",
            client: "Correct the request: `detail` says what is wrong. A random UUID is always a valid key.",
            operator: "The route's `key` sets the limits and the place of the key.",
        },
        Self::KeyMissing(detail) => RefusalRow {
            status: 400, slug: "key-missing", action: Fix, retry_after: None,
            grpc: GrpcStatus::InvalidArgument, oncegate_status: OncegateStatus::Rejected,
            title: "An idempotency key is required",
            detail: (&**detail).into(),
            means: "This operation may be retried only with an idempotency key, and the request has none.",
            executed: "No. The request was not forwarded.",
            client: "Send a key where `detail` says: a new value for each operation, such as a random UUID, and the \
                     same value for each retry of it. Store the key before the first try, not after it.",
            operator: "The route has `key.required`, and `key` says where the key is. A gateway in front of the proxy \
                       may be dropping it.",
        },
        Self::KeyReused(differing) => RefusalRow {
            action: if differing.is_another_operation() { NewKey } else { Fix },
            status: 422, slug: "key-reused", retry_after: None,
            grpc: GrpcStatus::FailedPrecondition, oncegate_status: OncegateStatus::KeyReused,
            title: "The key was used for another request",
            detail: describe_reuse(differing).into(),
            means: "The key belongs to another request: its method, path, query or body differs from this one.",
            executed: "This request was not executed. The one that the key belongs to may have been; its record is \
                       unchanged.",
            client: "For a new operation, use a new key. For a retry, repeat the first request unchanged: a body that \
                     is built anew for each try, for example with the current time in it, is another request. `differs` \
                     names the parts that are not the same; `missing` are parts that this request lacks. If the \
                     document says `fix`, this may be a retry: do not use a new key for it. Send what was sent first: the \
                     body and the credentials at once, without waiting to be asked, and the key in the same spelling, with \
                     the same case, spaces and quotes.",
            operator: "The cause is nearly always a client that makes its keys from too little, such as a customer \
                       number. The route's `fingerprint` defines when two requests are the same: leave out of it what \
                       clients make anew for each try, such as a time and a signature. The log names the parts in \
                       `differs`.",
        },
        Self::LoopDetected => RefusalRow {
            status: 508, slug: "loop-detected", action: Fix, retry_after: None,
            grpc: GrpcStatus::Internal, oncegate_status: OncegateStatus::Rejected,
            title: "The request has come back",
            detail: "The request has been through this instance before: its upstream leads back to it. It was not \
                     forwarded again.".into(),
            means: "This request carries the mark of this same instance in its `Via` field: what the instance forwards \
                    comes back to it.",
            executed: "No. The request was stopped before it could go round again.",
            client: "Nothing: a correct request comes back too. Tell the operator.",
            operator: "The upstream's address leads back to this proxy: compare `upstream` with `listen`, and look at \
                       what stands behind the upstream's name (a load balancer, a service, a redirect of ports).",
        },
        Self::OutcomeUnknown(wait) => RefusalRow {
            status: 409, slug: "outcome-unknown", action: Reconcile, retry_after: *wait,
            grpc: GrpcStatus::Unknown, oncegate_status: OncegateStatus::Unknown,
            title: "The outcome of the first attempt is unknown",
            detail: match wait {
                Some(_) => "The request may have been executed. Oncegate may be asking the service, or a retry may run \
                            later: send the same request with the same key again after Retry-After.",
                None => "The request may have been executed. While that is unknown, it is not executed again. Ask the \
                         service what happened before you do anything else.",
            }
            .into(),
            means: "An earlier attempt was sent to the service, and its answer was lost: the connection failed, the \
                    time limit passed, or the proxy was stopped. The proxy cannot know how the attempt ended.",
            executed: "Perhaps. While that is unknown, the request is not executed again unless the route's \
                       `on_unknown` allows it.",
            client: "Do not send the operation with a new key. Ask the service whether it was done, then continue from \
                     there. Asking again with the same key is safe on a route that holds such keys, as routes do by \
                     default: the request gets the response once it is known. `Retry-After` says when to ask again; without \
                     it, nothing changes until the service or a person says how the attempt ended.",
            operator: "The log has a line for the attempt whose outcome is unknown. A late answer of the service still \
                       settles the key. If the service itself can safely be asked twice, `on_unknown` can make the \
                       retry the next attempt. If the log says that a secret of fingerprints is gone, the retry cannot \
                       be compared with its first attempt: put the secret back into `previous_secrets`.",
        },
        Self::Overloaded(_) => RefusalRow {
            status: 503, slug: "overloaded", action: SameKey, retry_after: SOON,
            grpc: GrpcStatus::Unavailable, oncegate_status: OncegateStatus::Rejected,
            title: "This instance has too much work",
            detail: "This request was not executed; an earlier one with this key may have been. Send the same request \
                     with the same key again after Retry-After.".into(),
            means: "One of the limits of this proxy is reached: bodies in memory, connections, or connections to the \
                    service.",
            executed: "Nothing of this request was forwarded. An earlier one with this key may have been executed.",
            client: "Send the same request with the same key again, after `Retry-After`.",
            operator: "`oncegate_overloaded_total` says which limit it was; `[limits]` sets them. Look for clients \
                       that send slowly or hold many connections before you raise a limit.",
        },
        Self::PathAmbiguous(detail) => RefusalRow {
            status: 400, slug: "path-ambiguous", action: Fix, retry_after: None,
            grpc: GrpcStatus::InvalidArgument, oncegate_status: OncegateStatus::Rejected,
            title: "The path is not spelled in the one way that is guarded",
            detail: (&**detail).into(),
            means: "Many services take several spellings for one path: `//` for `/`, a `/` at the end, `;parameters`, \
                    `%2F`, another case. Some take the first segment after `//` for a host, and leave it out. Read so, \
                    this path is one that a route guards, but it is not spelled as the route's path. Passed on, it \
                    would be executed without protection.",
            executed: "No. The request was not forwarded.",
            client: "Send the path as the API documents it.",
            operator: "If clients are used to another spelling, set `spelling = \"same\"` on the route: it then counts \
                       as the route's path, unless it is a path behind `//HOST`. If the service really tells the \
                       spellings apart, `spelling = \"pass\"` lets the others through without protection.",
        },
        Self::RequestFromFuture => RefusalRow {
            status: 412, slug: "request-from-future", action: Fix, retry_after: None,
            grpc: GrpcStatus::InvalidArgument, oncegate_status: OncegateStatus::Rejected,
            title: "The request says that it comes from the future",
            detail: "The time at which the request was first sent lies ahead of this instance's clock. This request \
                     was not executed. Correct the clock of the client.".into(),
            means: "The request says in `Repeatability-First-Sent` that it was first sent more than five minutes from \
                    now. Its time says nothing about its age, so it could not be refused when it is too old.",
            executed: "No. The request was not forwarded.",
            client: "Correct the clock, and send the request with the right time. It needs a new key if an earlier \
                     attempt was accepted with another time.",
            operator: "If many clients get this, compare this machine's clock and the store's with a time server.",
        },
        Self::RequestTimeout => RefusalRow {
            status: 408, slug: "request-timeout", action: Fix, retry_after: None,
            grpc: GrpcStatus::DeadlineExceeded, oncegate_status: OncegateStatus::Rejected,
            title: "The request did not arrive in time",
            detail: "The request stopped arriving, and the service did not get all of it.".into(),
            means: "The request did not arrive in time: its head was incomplete, or its body stopped or was too slow.",
            executed: "Nothing of a guarded request, which is forwarded only when it is complete. The service may have \
                       the beginning of a request that no route guards.",
            client: "Send the complete request again, on a new connection: this one is closed. The same key may be \
                     used.",
            operator: "The cause is a slow network, or a client that announces a longer body than it sends. Many of \
                       these from few addresses mean that somebody holds connections open on purpose.",
        },
        Self::RequestTooOld => RefusalRow {
            status: 400, slug: "request-too-old", action: Fix, retry_after: None,
            grpc: GrpcStatus::InvalidArgument, oncegate_status: OncegateStatus::Rejected,
            title: "The request is too old",
            detail: "The request says that it was first sent longer ago than this route allows. This request was not \
                     executed; an earlier one with this key may have been.".into(),
            means: "The request says in `Repeatability-First-Sent` or `Date` when it was first sent, and that is \
                    longer ago than this route allows. Its key may have been deleted since.",
            executed: "Not now. An earlier attempt may have been executed.",
            client: "Ask the service how the first attempt ended. A new operation needs a new key and its own time.",
            operator: "The limit is the route's `max_age`, by the store's clock; a retry of a stored key is answered \
                       although it is older. If new requests are refused, compare the clients' clocks.",
        },
        Self::RequestTooLarge(bytes) => RefusalRow {
            status: 413, slug: "request-too-large", action: Fix, retry_after: None,
            grpc: GrpcStatus::ResourceExhausted, oncegate_status: OncegateStatus::Rejected,
            title: "The request is too large",
            detail: format!("The request's body is larger than the {bytes} bytes that this route allows. This request \
                             was not executed.").into(),
            means: "The body is larger than this route allows. Guarded requests are held in memory until they are \
                    complete.",
            executed: "No. The request was not forwarded.",
            client: "Send less, or send the large part in another way and refer to it. If more than 64 KiB of the body \
                     are left unsent, the answer says `Connection: close`.",
            operator: "The limit is the route's `max_request_body`; a retry of a stored key is answered although it is \
                       larger. Send uploads to a path that no route guards: there bodies stream through.",
        },
        Self::ResponseCorrupt => RefusalRow {
            status: 500, slug: "response-corrupt", action: Fix, retry_after: None,
            grpc: GrpcStatus::DataLoss, oncegate_status: OncegateStatus::Rejected,
            title: "The record of the key cannot be read",
            detail: "An earlier request with this key may have been executed, and the record of it cannot be read. It \
                     is not executed again. Ask the service what happened before you do anything else; an operator \
                     must look at the record.".into(),
            means: "There is a record of this key, perhaps with a response, and it cannot be read.",
            executed: "Perhaps. An earlier request with this key may have been; this one was not.",
            client: "Do not send the operation with a new key. Ask the service for the result.",
            operator: "The log says what cannot be read. A later version of the proxy may have written it: upgrade \
                       this one. A secret may be gone: put it back into `previous_secrets`. Else something else than \
                       the proxy has written into the store: check the database, its disks, and who may write there. \
                       Requests with the key are refused until then.",
        },
        Self::ResponseNotKept => RefusalRow {
            status: 409, slug: "response-not-kept", action: Reconcile, retry_after: None,
            // Here it is the success of an earlier attempt.
            grpc: GrpcStatus::AlreadyExists, oncegate_status: OncegateStatus::Replayed,
            title: "Executed, but the response was not stored",
            detail: "The operation was executed. Its response was not kept: it was too large to store, or was erased. \
                     Ask the service for the result.".into(),
            means: "The operation was executed. Its response was too large to store and went to the first caller \
                    only, or an operator has erased it.",
            executed: "Yes, once. It will not be executed again with this key.",
            client: "Ask the service for the result, for example by reading what the operation has created.",
            operator: "The limit is the route's `max_response_body`. Raise it if such responses are usual here.",
        },
        Self::ScopeMissing(detail, challenge) => RefusalRow {
            status: if challenge.is_some() { 401 } else { 400 },
            slug: "scope-missing", action: Fix, retry_after: None,
            grpc: GrpcStatus::InvalidArgument, oncegate_status: OncegateStatus::Rejected,
            title: "The caller cannot be identified",
            detail: (&**detail).into(),
            means: "One key of two callers is two keys, so Oncegate must know who calls. Nothing in this request says \
                    so: it has none of the fields, cookies or parameters that this route reads. Or its credentials \
                    differ with each try, as those of `Digest` do, and a retry would be another caller.",
            executed: "No. The request was not forwarded.",
            client: "Send what `detail` names, as the API documents it: mostly an `Authorization` field. A 401 asks \
                     for it in `WWW-Authenticate`.",
            operator: "If callers identify themselves in another way, name it in the route's `scope`. A `header:` part \
                       counts only from a peer in `trusted_proxies`. If there really is one caller only, `scope = \
                       [\"none\"]` says so. For clients that send credentials only when a 401 asks for them, write the \
                       route's `challenge`.",
        },
        Self::SignatureInvalid(fault) => RefusalRow {
            status: 401, slug: "signature-invalid", action: Fix, retry_after: None,
            grpc: GrpcStatus::Unauthenticated, oncegate_status: OncegateStatus::Rejected,
            title: "The signature is not valid",
            detail: format!("{} It was not executed.", fault.detail()).into(),
            means: "The route takes webhooks of one sender, and the request is not known to be from it: `detail` says \
                    why.",
            executed: "This request was not forwarded, and the store was not asked. An earlier one with this key may \
                       have been executed.",
            client: "Send the event as its sender does, signed with the secret of this endpoint.",
            operator: "If all events are refused, compare `signature.secrets` with the sender's page, and the store's \
                       clock with the time. A proxy before Oncegate must not change the body.",
        },
        Self::StoreUnavailable => RefusalRow {
            status: 503, slug: "store-unavailable", action: SameKey, retry_after: SOON,
            grpc: GrpcStatus::Unavailable, oncegate_status: OncegateStatus::Rejected,
            title: "The key cannot be reserved at the moment",
            detail: "This request was not forwarded; an earlier one with this key may have been executed. A route that \
                     delivers later may have accepted this one. Send the same request with the same key again after \
                     Retry-After.".into(),
            means: "The proxy cannot store the reservation of the key at the moment, and it forwards nothing without \
                    one.",
            executed: "Nothing of this request was forwarded. An earlier one with this key may have been executed. A \
                       route that delivers later may have accepted this one, and then delivers it.",
            client: "Send the same request with the same key again, after `Retry-After`.",
            operator: "`/readyz` on the admin listener says what is wrong with the store. Check the database, the \
                       network to it, and the settings `store.timeout` and `store.max_connections`.",
        },
        Self::TokenInvalid(fault) => RefusalRow {
            status: 401, slug: "token-invalid", action: Fix, retry_after: None,
            grpc: GrpcStatus::Unauthenticated, oncegate_status: OncegateStatus::Rejected,
            title: "The token is not valid",
            detail: format!("{} This request was not executed; an earlier one with this key may have been. Get a new \
                             token, and send the same request with the same key again.", fault.detail()).into(),
            means: "The route identifies callers by their token, and this token does not verify: `detail` says why.",
            executed: "This request was not forwarded, and the store was not asked. An earlier one with this key may \
                       have been executed.",
            client: "Get a new token from the issuer, and send the same request with the same key again. A new token \
                     of the same caller finds the same key.",
            operator: "If all tokens are refused, compare `[jwt]` with a token: `issuer` with its `iss`, `audience` \
                       with its `aud`, `algorithms` with its `alg`, and the machine's clock with its `exp`. `oncegate \
                       explain` verifies one token.",
        },
        Self::TooManyKeys(wait) => RefusalRow {
            status: 429, slug: "too-many-keys", action: SameKey, retry_after: Some(*wait),
            grpc: GrpcStatus::ResourceExhausted, oncegate_status: OncegateStatus::Rejected,
            title: "Too many new keys",
            detail: "This caller, or the address it comes from, uses or holds more keys than this route allows. The \
                     store has no record of this key, and this request was not executed. Send the same request with \
                     the same key again after Retry-After.".into(),
            means: "The caller uses new keys faster, or holds more live keys, than the route's `limits` allow. A \
                    caller whom the service has not accepted yet shares the limits of the address that it comes from.",
            executed: "Nothing of this request was forwarded, and the store has no record of its key. Retries of known \
                       keys are answered as before.",
            client: "Send the same request with the same key again, after `Retry-After`.",
            operator: "`oncegate_rate_limited_total` counts by route. `/api/v1/saved` lists the callers, as hashes, \
                       that repeat most.",
        },
        Self::Unguarded => RefusalRow {
            status: 403, slug: "unguarded", action: Fix, retry_after: None,
            grpc: GrpcStatus::PermissionDenied, oncegate_status: OncegateStatus::Rejected,
            title: "This operation is not guarded",
            detail: "The operation may change state, and no route makes it safe to retry. This request was not \
                     executed.".into(),
            means: "The operation may change state, and no route of this proxy makes it safe to retry.",
            executed: "No. The request was not forwarded.",
            client: "Retrying does not help: tell the operators of the service which operation you need.",
            operator: "`unguarded = \"refuse\"` refuses every operation that no route names. A route that verifies \
                       signatures refuses other methods at its path. Add a route for the operation, or one with \
                       `mode = \"off\"` if it may be executed twice. `oncegate check --openapi` lists the missing ones.",
        },
        Self::UpstreamBroken => RefusalRow {
            status: 502, slug: "upstream-broken", action: Reconcile, retry_after: None,
            grpc: GrpcStatus::Unknown, oncegate_status: OncegateStatus::Unknown,
            title: "The connection to the service failed",
            detail: "The request may have been executed: the service closed the connection after it was sent. Ask the \
                     service what happened before you do anything else.".into(),
            means: "The request was sent to the service, and the service closed the connection before its answer was \
                    complete.",
            executed: "Perhaps. The service may have executed it before that. With a key it is not executed again \
                       while that is unknown, unless the route's `on_unknown` allows it.",
            client: "Do not send the operation with a new key. Ask the service whether it was done. Without a key, \
                     treat it as possibly done.",
            operator: "Look at the service's own log at that moment: a crash, a restart without draining, a memory \
                       limit. If only idle connections fail, set `upstream_idle_timeout` below the service's own \
                       keep-alive time.",
        },
        Self::UpstreamTimeout => RefusalRow {
            status: 504, slug: "upstream-timeout", action: Reconcile, retry_after: None,
            grpc: GrpcStatus::DeadlineExceeded, oncegate_status: OncegateStatus::Unknown,
            title: "The service did not answer in time",
            detail: "The request may have been executed: no complete response came in time. Ask the service what \
                     happened before you do anything else.".into(),
            means: "The request was sent to the service, and no complete answer came within this route's time limit.",
            executed: "Perhaps. The service may still be working on it. With a key it is not executed again while the \
                       outcome is unknown, unless the route's `on_unknown` allows it.",
            client: "Do not send the operation with a new key. Ask again with the same key later, or ask the service.",
            operator: "The limit is the route's `upstream_timeout`. Keep it above the time after which the service \
                       itself gives up, so that the service reports how it ended.",
        },
        Self::UpstreamUnreachable(reason) => RefusalRow {
            status: 502, slug: "upstream-unreachable", action: SameKey, retry_after: None,
            grpc: GrpcStatus::Unavailable, oncegate_status: OncegateStatus::Released,
            title: "The service cannot be reached",
            detail: format!("{reason} Send it again, with the same key if it has one.").into(),
            means: "The proxy could not connect to the service, or the service refused the request before it processed \
                    anything of it.",
            executed: "Not by this request: the service got nothing of it, or has declared that it did nothing with \
                       it.",
            client: "Send the same request with the same key again, a little later.",
            operator: "Check whether the service is running, and whether `upstream` names it as this proxy sees it. \
                       The log and the `detail` have the cause, such as a failed TLS handshake; `connect_timeout` \
                       limits each try.",
        },
        }
    }
}
