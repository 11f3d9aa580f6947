//! The uses of a service, and the route that each gets: one row of `Use::route` each.

use clap::ValueEnum;
use data_encoding::HEXLOWER;

use crate::cli::{CommandError, failed};
use oncegate_config as config;
use oncegate_domain::path_pattern::PathPattern;
use oncegate_machine::fill_random;
use oncegate_settings::{Vendor, WebhookSender, Word, one_of};

/// What a route's requests do.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Use {
    Payments,
    Orders,
    Uploads,
    ModelApi,
    Webhooks,
    Egress,
    Graphql,
    Grpc,
    Mcp,
}

/// A use on a path other than the usual one, and for webhooks who sends them, for egress who is called.
#[derive(Clone)]
pub(super) struct PlannedUse {
    pub(super) kind: Use,
    pub(super) sender: WebhookSender,
    pub(super) vendor: Vendor,
    pub(super) path: Option<String>,
}

impl PlannedUse {
    pub(super) fn path(&self) -> String {
        let usual = match (self.sender, self.vendor) {
            (WebhookSender::None, Vendor::Stripe) => "/v1/{*rest}".to_owned(),
            (WebhookSender::None, _) => self.kind.route().0.to_owned(),
            (sender, _) => format!("/webhooks/{}", sender.word()),
        };
        self.path.clone().unwrap_or(usual)
    }

    /// The lines of its route; `secrets` is the folder of a credential. The secret of a webhook is drawn: nobody knows
    /// it, until the sender's is in its place.
    pub(super) fn lines(&self, secrets: &str) -> Result<String, CommandError> {
        let (_, lines) = self.kind.route();
        if self.kind == Use::Egress {
            let (vendor, key) = match self.vendor {
                Vendor::None => ("vendor", "json:/order_id"),
                // Their requests are forms.
                Vendor::Stripe => ("stripe", "form:metadata[order_id]"),
                Vendor::Twilio => ("twilio", "header:x-order-id"),
                vendor => (vendor.word(), "json:/order_id"),
            };
            let lines = lines.replace("VENDOR", self.vendor.word());
            return Ok(lines.replace("CREDENTIAL", &format!("{secrets}/{vendor}")).replace("KEY", key));
        }
        if self.sender == WebhookSender::None {
            return Ok(lines.to_owned());
        }
        let mut drawn = [0; 32];
        fill_random(&mut drawn).map_err(failed)?;
        let secret = HEXLOWER.encode(&drawn);
        let (sender, secrets) = (self.sender.word(), format!("secrets = [\"{secret}\"]"));
        let signature = match self.sender {
            WebhookSender::Hubspot | WebhookSender::Twilio => format!("{secrets}, url = \"https://hooks.example.com\""),
            _ => secrets,
        };
        let comment = "# the sender's own in place of these, best as `${file:…}`: docs/webhooks.md";
        let signature = format!("signature = {{ {signature} }}   {comment}\n");
        Ok(format!("{lines}sender = \"{sender}\"\n{signature}"))
    }
}

impl Use {
    /// The usual path, and the other lines of a route with their reasons.
    pub(super) fn route(self) -> (&'static str, &'static str) {
        match self {
            Self::Payments => (
                "/v1/payments",
                "kind = \"money\"   # keys are required, and a 5xx means \"outcome unknown\": the service may have charged\n\
                 # reconcile = { url = \"https://…/by-record/{id}\" }   # lets Oncegate ask the service: docs/reconciliation.md\n\
                 # in_flight = \"wait\"   # behind a proxy or before clients that hedge: docs/clients.md\n",
            ),
            Self::Orders => (
                "/v1/orders",
                "key = { required = true }   # without it, a request without a key passes unguarded\n\
                 # A 500 means \"not executed\": the retry runs again. If the service may act and then answer 500, write kind = \"money\".\n\
                 # in_flight = \"wait\"   # behind a proxy or before clients that hedge: docs/clients.md\n",
            ),
            Self::Uploads => (
                "/v1/uploads",
                "# A 500 means \"not executed\": the retry runs again. If the service may act and then answer 500, write kind = \"money\".\n\
                 max_request_body = \"64MiB\"   # a larger upload is refused; limits.held_bodies bounds all of them\n",
            ),
            Self::ModelApi => (
                "/v1/chat/completions",
                "key = { required = true }   # OpenAI's clients send none by themselves, and without one nothing is guarded\n\
                 # Events reach the client as they come, and a retry joins the running response or gets the whole one.\n\
                 in_flight = \"wait\"\n\
                 wait_timeout = \"60s\"\n\
                 upstream_timeout = \"120s\"   # until the first event\n\
                 max_response_body = \"8MiB\"\n",
            ),
            Self::Webhooks => ("/webhooks", "kind = \"webhook\"\n"),
            Self::Egress => (
                "/{*rest}",
                "vendor = \"VENDOR\"   # what it promises about keys; the `upstream` at the top is the vendor's, or a double's: docs/egress.md\n\
                 # An SDK draws another key for each call: a worker that is started again charges again. Have a route for each call that names \
                 its operation, and this line in it:\n\
                 # key = { from = \"KEY\" }\n\
                 # set_headers = { Authorization = \"Bearer ${file:CREDENTIAL}\" }   # then no caller holds it, and one worker needs scope = [\"none\"]\n\
                 # reconcile = { url = \"https://…/search?reference={key}\" }   # ends what the vendor's keys do not\n",
            ),
            Self::Graphql => ("/graphql", "dialect = \"graphql\"   # mutations are guarded, queries pass\n"),
            Self::Grpc => (
                "/package.Service/Method",
                "# One route for each method that changes something. The upstream must be h2c:// or https://.\n",
            ),
            Self::Mcp => (
                "/mcp",
                "dialect = \"mcp\"   # tool calls with a key are guarded; those without one, and everything else, pass\n",
            ),
        }
    }

    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

pub(super) fn parse_use(text: &str) -> Result<PlannedUse, String> {
    let text = text.trim();
    let (name, path) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path.to_owned())));
    let vendor = match name.split_once(':') {
        Some(("egress", vendor)) => {
            let unknown = || format!("`{vendor}` is none of {}", one_of(&Vendor::WORDS[1..]));
            Vendor::parse(vendor).filter(|vendor| *vendor != Vendor::Off).ok_or_else(unknown)?
        }
        _ => Vendor::None,
    };
    let (name, sender) = match name.split_once(':') {
        Some((name @ "egress", _)) => (name, WebhookSender::None),
        Some((name @ "webhooks", sender)) => {
            if sender == WebhookSender::Pubsub.word() {
                return Err(
                    "`webhooks:pubsub` needs `[jwt]` with `require`, which are yours to write: docs/webhooks.md".into(),
                );
            }
            let unknown = || format!("`{sender}` is none of {}", one_of(&WebhookSender::WORDS[1..]));
            (name, WebhookSender::parse(sender).filter(|sender| *sender != WebhookSender::None).ok_or_else(unknown)?)
        }
        _ if name == "webhooks" => (name, WebhookSender::StandardWebhooks),
        _ => (name, WebhookSender::None),
    };
    let found = Use::value_variants().iter().find(|known| known.name() == name);
    let found = *found.ok_or_else(|| {
        let names: Vec<_> = Use::value_variants().iter().map(|known| known.name()).collect();
        let near = config::nearest(name, names.iter().map(|name| &**name));
        let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        format!("`{name}` is none of {}{hint}", names.join(", "))
    })?;
    path.as_deref().map_or(Ok(()), |path| PathPattern::parse(path).map(drop))?;
    Ok(PlannedUse { kind: found, sender, vendor, path })
}
