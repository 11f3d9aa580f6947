//! Reads and checks a route's `sender` and `signature`.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use toml::de::DeTable;

use super::options::options;
use super::reader::{Section, Text};
use oncegate_settings::{RouteKind, WebhookSender, Word, show_duration};
use oncegate_trust::webhook::{SignatureRule, SignatureScheme, SigningKey};

/// One row for each sender.
const SENDERS: &str = include_str!("senders.toml");

/// The part of a row that is no preset.
#[derive(Deserialize)]
struct SenderRow {
    signature: Option<SignatureScheme>,
}

static SCHEMES: LazyLock<HashMap<String, SenderRow>> =
    LazyLock::new(|| toml::from_str(SENDERS).expect("each row has the form of one"));

static PRESETS: LazyLock<Spanned<DeTable<'static>>> =
    LazyLock::new(|| DeTable::parse(SENDERS).expect("the table is TOML"));

options! {
    struct SignatureOptions {
        /// the secrets of the endpoint, two during a rotation; a public key for a sender that has one
        secrets: Texts = [];
        /// by how much the time of a delivery may differ from now
        tolerance: Duration = "5m" => Duration, duration_above_zero();
        /// for senders that sign their URL: what stands before the path in it, such as `https://hooks.example.com`
        url: Text = "" => Option<Box<str>>, optional(parse_url);
    }
}

pub(super) use SignatureOptions as Options;

/// The options of a route of this sender; `None` for no sender.
pub(super) fn preset(sender: WebhookSender) -> Option<&'static DeTable<'static>> {
    PRESETS.get_ref().get(sender.word())?.get_ref().get("route")?.get_ref().as_table()
}

/// Reads how the requests of a route are signed, whose keys are kept for so long; `None` where nothing is verified
/// here, or where there is a problem.
pub(super) fn read(section: &Section<'_>, kept: Duration) -> Option<Arc<SignatureRule>> {
    let (kind, sender) = (section.choice::<RouteKind>("kind"), section.choice::<WebhookSender>("sender"));
    match (kind, sender) {
        (RouteKind::Webhook, WebhookSender::None) => section.need("sender", true, "whose webhooks are they?")?,
        (RouteKind::Webhook, _) | (_, WebhookSender::None) => {}
        _ => {
            section.conflict(&["kind", "sender"], "counts only with `kind = \"webhook\"`");
            return None;
        }
    }
    let table = section.table("signature");
    let SignatureOptions { tolerance, url } = SignatureOptions::read(&table);
    let written = table.texts("secrets")?;
    let scheme = SCHEMES.get(sender.word()).and_then(|row| row.signature.as_ref());
    let Some(scheme) = scheme else {
        if !written.is_empty() {
            table.problem("secrets", "are of no use: the sender has no signature that is verified by a secret");
        }
        return None;
    };
    if scheme.signs_url() {
        table.need("url", url.is_none(), "the sender signs its URL")?;
    }
    if tolerance > kept {
        let kept = show_duration(kept);
        table.problem(
            "tolerance",
            format!("is longer than the {kept} for which a key is kept: a delivery could be sent again after that"),
        );
    }
    table.need("secrets", written.is_empty(), "without it, anybody could make up events")?;
    let read_key = |text: Text| -> Option<SigningKey> {
        scheme.read_key(&text.value).map_err(|problem| table.reader().problem(&text.position, problem)).ok()
    };
    let keys = written.into_iter().map(|text| read_key(text?)).collect::<Option<_>>()?;
    Some(Arc::new(SignatureRule { scheme, keys, tolerance, url: url.unwrap_or_default() }))
}

fn parse_url(text: &str) -> Result<Box<str>, String> {
    let is_url = ["https://", "http://"].iter().any(|scheme| text.len() > scheme.len() && text.starts_with(scheme));
    match is_url && !text.ends_with('/') && !text.contains(['?', '#']) {
        true => Ok(text.into()),
        false => Err("is not the begin of a URL: write it like `https://hooks.example.com`".into()),
    }
}
