//! The choices among the values of a route's options.

use super::Word;
use crate::words;

words! {
    /// The space in which a key is unique.
    pub enum KeySpace {
        /// The method and the path, however it is spelled, without the query.
        Path = "path",
        /// The route.
        Route = "route",
        /// The whole service.
        Service = "service",
    }
}

words! {
    /// Whether a route guards.
    pub enum RouteMode {
        /// It guards.
        Enforce = "enforce",
        /// It forwards, and counts what guarding would have done.
        Observe = "observe",
        /// It forwards its requests as streams.
        Off = "off",
    }
}

impl RouteMode {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        self.word()
    }
}

words! {
    /// The response to a duplicate while the first attempt runs.
    pub enum InFlightPolicy {
        /// 409.
        Conflict = "conflict",
        /// The first attempt's answer, if it comes in time.
        Wait = "wait",
        /// 202.
        Accepted = "accepted",
    }
}

words! {
    /// The handling of a request whose key the store cannot reserve.
    pub enum StoreDownPolicy {
        /// 503.
        Reject = "reject",
        /// It is forwarded unguarded.
        Bypass = "bypass",
    }
}

words! {
    /// The handling of a request that equals an earlier one of the same caller under another key.
    pub enum SameBodyPolicy {
        /// Nothing is noted.
        Allow = "allow",
        /// A metric, a log line and a line on the page.
        Warn = "warn",
        /// 409, until the client confirms that it is another operation.
        Refuse = "refuse",
    }
}

words! {
    /// Whether the first client gets the bytes of a response before the response is stored.
    pub enum StreamMode {
        /// Responses that are streams by their media type, and slow ones without a length.
        Auto = "auto",
        /// All responses.
        Always = "always",
        /// No response that can be stored.
        Never = "never",
    }
}

words! {
    /// The end of an attempt whose client has left.
    pub enum OnClientGone {
        /// It runs on, and its response is stored.
        Continue = "continue",
        /// The connection to the service is closed, and the key is unknown.
        Cancel = "cancel",
    }
}

words! {
    /// When a request is sent to the service.
    pub enum DeliveryMode {
        /// At once.
        Sync = "sync",
        /// Later, for all requests.
        Async = "async",
        /// Later, where the client says that it prefers that (`Prefer: respond-async`, RFC 7240 section 4.1).
        Prefer = "prefer",
    }
}

words! {
    /// The nature of an execution of the route's requests.
    pub enum RouteKind {
        /// A response of the service's own failure means that the request was not executed.
        Standard = "standard",
        /// A second execution costs money: a request that may have been executed is never executed again by itself.
        Money = "money",
        /// A token is used up, and the response has the next one (OAuth: RFC 6749, section 6).
        Token = "token",
        /// An event of another's API, which its sender repeats until the answer is a success.
        Webhook = "webhook",
    }
}

words! {
    /// The sender of a route's webhooks.
    pub enum WebhookSender {
        /// Nobody: the route takes no webhooks.
        None = "none",
        /// Any sender that follows <https://www.standardwebhooks.com>.
        StandardWebhooks = "standard-webhooks",
        /// Adyen, its standard notifications.
        Adyen = "adyen",
        /// GitHub.
        Github = "github",
        /// HubSpot.
        Hubspot = "hubspot",
        /// Mux.
        Mux = "mux",
        /// Google Cloud Pub/Sub, by push.
        Pubsub = "pubsub",
        /// SendGrid, its event webhook.
        Sendgrid = "sendgrid",
        /// Shopify.
        Shopify = "shopify",
        /// Slack, by its Events API.
        Slack = "slack",
        /// Stripe.
        Stripe = "stripe",
        /// Svix, for its customers.
        Svix = "svix",
        /// Twilio.
        Twilio = "twilio",
    }
}

words! {
    /// The vendor whose API a route calls.
    pub enum Vendor {
        /// Nobody: the route leads to a service of one's own.
        Off = "off",
        /// A vendor without keys.
        None = "none",
        /// Adyen, its Checkout API.
        Adyen = "adyen",
        /// Anthropic.
        Anthropic = "anthropic",
        /// Checkout.com.
        Checkout = "checkout",
        /// GoCardless.
        Gocardless = "gocardless",
        /// Mollie.
        Mollie = "mollie",
        /// OpenAI.
        Openai = "openai",
        /// PayPal.
        Paypal = "paypal",
        /// Square.
        Square = "square",
        /// Stripe.
        Stripe = "stripe",
        /// Twilio.
        Twilio = "twilio",
        /// Wise.
        Wise = "wise",
    }
}
