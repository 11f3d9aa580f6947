//! What the pages say: one for each slug of the table in `gate::refuse`, in the order of their names.

/// A page's own words; its title, status and `retry` stand in the table. What stands between backticks is code.
pub(super) struct Page {
    pub slug: &'static str,
    /// What happened, for somebody who has never heard of it.
    pub means: &'static str,
    /// Whether the operation may have been executed: what a client asks first.
    pub executed: &'static str,
    pub client: &'static str,
    pub operator: &'static str,
}

#[rustfmt::skip]
pub(super) const PAGES: [Page; 18] = [
    Page {
        slug: "bad-request",
        means: "The request breaks HTTP, or it is ambiguous about where it ends or whom it is for. Two programs could \
                read two different requests in it, so it is refused rather than repaired. A head that is too large \
                gets status 431, a transfer coding that is not known 501.",
        executed: "No. The request was not forwarded.",
        client: "Correct the request: `detail` says what is wrong. The connection is closed, so send it on a new one. \
                 The same key may be used.",
        operator: "Browsers and HTTP libraries send no such requests. Look at what stands between the client and this \
                   proxy: a gateway that sends both `Content-Length` and `Transfer-Encoding`, or no `Host`. If nothing \
                   does, somebody may be trying to smuggle requests.",
    },
    Page {
        slug: "draining",
        means: "This instance of the proxy is being stopped, and begins nothing new.",
        executed: "No. Nothing of the request was forwarded.",
        client: "Send the same request with the same key again, after `Retry-After` and on a new connection. Another \
                 instance will take it.",
        operator: "Nothing, if it lasts seconds. If clients see it at every deployment, the load balancer goes on \
                   sending requests to an instance whose `/readyz` already fails: raise `drain_delay` above the time \
                   that it takes to notice.",
    },
    Page {
        slug: "in-flight",
        means: "A request with this key is being executed at this moment. A second one would be a second execution.",
        executed: "The first request is being executed. This one was not, and will not be.",
        client: "Wait for `Retry-After`, and send the same request with the same key again: it gets the response of the \
                 first attempt, or becomes the next attempt if that turns out not to have executed.",
        operator: "Clients that meet this often give up before the service answers: compare their timeout with what \
                   the service takes. An attempt lasts no longer than the route's `upstream_timeout`.",
    },
    Page {
        slug: "key-expired",
        means: "A request with this key was executed long ago. Its response is no longer kept, and this route remembers \
                expired keys so that a very late retry is not taken for a new request.",
        executed: "Once, long ago. Not now.",
        client: "Do not send the request again under another key before you know how the first one ended: ask the \
                 service. A new operation needs a new key.",
        operator: "The route says `after_ttl = \"refuse\"`. Clients that retry after the `ttl` keep their requests for \
                   too long, or the `ttl` is too short for them.",
    },
    Page {
        slug: "key-invalid",
        means: "The request has a key, but not one that could be kept: it is empty, too long or too short, has a character \
                that is not allowed, or came more than once. Or it cannot be told whose key it is, because the request \
                lacks what this route tells callers apart by.",
        executed: "No. The request was not forwarded.",
        client: "Correct the request: `detail` says what is wrong. A random UUID is always a good key.",
        operator: "The route's `key` has the limits, its `scope` says what tells callers apart. A `header:` part is \
                   believed from `trusted_proxies` only. Where callers are known by a cookie, the scope must name it.",
    },
    Page {
        slug: "key-missing",
        means: "This operation may be retried only under an idempotency key, and the request has none.",
        executed: "No. The request was not forwarded.",
        client: "Send the key field, by default `Idempotency-Key`: one fresh value for each operation, such as a random \
                 UUID, and the same value for each retry of it. Keep the key before the first try, not after.",
        operator: "The route has `key.required`, and `key.header` names the field. A gateway before the proxy may be \
                   dropping it.",
    },
    Page {
        slug: "key-reused",
        means: "The key belongs to another request: one whose method, path, query or body differs from this one.",
        executed: "This request was not. The one that the key belongs to may have been; its record is as it was.",
        client: "For a new operation, use a new key. For a retry, repeat the first request unchanged: a body that is built \
                 anew for each try, with the current time in it say, is another request.",
        operator: "It is nearly always a client that makes its keys from too little, such as a customer's number. The \
                   route's `fingerprint` says what makes two requests the same.",
    },
    Page {
        slug: "outcome-unknown",
        means: "An earlier attempt was sent to the service, and its answer was lost: the connection broke, the time was \
                up, or the proxy was stopped. Nobody can tell from outside how it ended.",
        executed: "Perhaps. That is the point: the request may have been executed, and is not executed again on a guess.",
        client: "Do not send the operation with a new key. Find out at the service whether it was done, then go on from \
                 there. Asking again with the same key is safe on a route that holds such keys, as it does by default: it gets \
                 the response once that is known.",
        operator: "The log has a line for the attempt whose outcome is unknown. An answer of the service that comes late \
                   still settles the key. For a service that is itself safe to ask twice, `on_unknown` can let the retry \
                   become the next attempt.",
    },
    Page {
        slug: "request-timeout",
        means: "The request did not arrive in time: its head was not whole, or its body stalled or trickled.",
        executed: "No. A request is forwarded when it is whole.",
        client: "Send it again, whole; the connection is closed. The same key may be used.",
        operator: "A slow network, or a client that announces a longer body than it sends. Many of these from few \
                   addresses are somebody who holds connections open.",
    },
    Page {
        slug: "request-too-large",
        means: "The body is larger than this route allows. Guarded requests are held in memory until they are whole.",
        executed: "No. The request was not forwarded.",
        client: "Send less, or send the large part by another way and refer to it.",
        operator: "The limit is the route's `max_request_body`. Uploads are better sent to a path that no route guards, \
                   where bodies stream through.",
    },
    Page {
        slug: "request-too-old",
        means: "The request says itself when it was first sent, in `Repeatability-First-Sent` or `Date`, and that is longer \
                ago than this route allows. Its key may have been forgotten since.",
        executed: "Not now. An earlier attempt may have been.",
        client: "Find out at the service how the first attempt ended. A new operation needs a new key and its own time.",
        operator: "The route's `max_age` is the limit, by the store's clock. If fresh requests are refused, compare the \
                   clients' clocks.",
    },
    Page {
        slug: "response-corrupt",
        means: "There is a stored response for this key, and it cannot be read any more.",
        executed: "Yes. Its response was stored, and has been damaged since.",
        client: "Do not send the operation with a new key. Ask the service for the result.",
        operator: "The log names the record. Somebody or something else has written into the store: look at the database, \
                   its disks, and at who may write there. The key stays closed.",
    },
    Page {
        slug: "response-not-kept",
        means: "The operation has been executed. Its response was too large to keep, and went to the first caller only.",
        executed: "Yes, once. It will not be executed again under this key.",
        client: "Ask the service for the result, by reading what the operation has made.",
        operator: "The limit is the route's `max_response_body`. Raise it if such responses are usual here.",
    },
    Page {
        slug: "store-unavailable",
        means: "The proxy cannot write down at the moment that the key is taken, and forwards nothing that it has not \
                written down.",
        executed: "No. Nothing of the request was forwarded.",
        client: "Send the same request with the same key again, after `Retry-After`.",
        operator: "`/readyz` on the admin listener says what is wrong with the store. Look at the database, the network to \
                   it, and at `store.timeout` and `store.max_connections`.",
    },
    Page {
        slug: "unguarded",
        means: "The operation would change something, and no route of this proxy makes it safe to retry.",
        executed: "No. The request was not forwarded.",
        client: "Nothing will change by itself: tell whoever runs the service which operation you need.",
        operator: "`unguarded = \"refuse\"` refuses what no route names. Add a route for it, or one with `mode = \"off\"` \
                   if it may be executed twice. `oncegate check --openapi` lists what is missing.",
    },
    Page {
        slug: "upstream-broken",
        means: "The request was sent to the service, and the service broke off before it had given a whole answer.",
        executed: "Perhaps. The service may have done it before it broke off. Under a key it is not executed again until \
                   that is known.",
        client: "Do not send the operation with a new key. Find out at the service whether it was done. Without a key, \
                 treat it as possibly done.",
        operator: "The service's own log at that moment: a crash, a restart without draining, a limit on memory. If it \
                   meets idle connections only, `upstream_idle_timeout` must be below the service's own keep-alive.",
    },
    Page {
        slug: "upstream-timeout",
        means: "The request was sent to the service, and no whole answer came within this route's time.",
        executed: "Perhaps. The service may still be at work. It is not executed again under this key until the outcome \
                   is known.",
        client: "Do not send the operation with a new key. Ask again with the same key later, or find out at the service.",
        operator: "The time is the route's `upstream_timeout`. Keep it above what the service itself takes to give up, so \
                   that it is the service that says how it ended.",
    },
    Page {
        slug: "upstream-unreachable",
        means: "The proxy could not connect to the service.",
        executed: "No. Nothing of the request was sent.",
        client: "Send the same request with the same key again, a little later.",
        operator: "Whether the service is running, and whether `upstream` names it as this proxy sees it. The log has the \
                   cause; `connect_timeout` says how long is tried.",
    },
];
