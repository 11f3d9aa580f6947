//! Reads and checks a route's `vendor`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use toml::Spanned;
use toml::de::DeTable;

use super::reader::Section;
use oncegate_domain::place::Place;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_settings::{
    DeliveryMode, Dialect, KeyRule, UpstreamTarget, Vendor, VendorKey, VendorRule, Word, bare_host, is_local,
    parse_duration,
};

/// One row for each vendor.
const VENDORS: &str = include_str!("vendors.toml");

/// The options of each route that leads to a vendor. The vendor's own come before them.
const EGRESS: &str = r#"
key = { required = true }
in_flight = "wait"
wait_timeout = "60s"
store_statuses = ["2xx", "3xx", "4xx"]
release_statuses = ["401", "403", "429"]
unknown_statuses = ["408", "409", "425", "5xx"]
"#;

/// The option of a vendor with a window.
const REPEATED: &str = "on_unknown = \"vendor\"";

/// The part of a row that is no preset.
#[derive(Deserialize)]
struct VendorRow {
    hosts: Vec<Box<str>>,
    window: Option<String>,
    key: Option<KeyRow>,
}

#[derive(Deserialize)]
struct KeyRow {
    place: String,
    length_max: usize,
    #[serde(default)]
    is_uuid: bool,
}

static RULES: LazyLock<HashMap<String, Arc<VendorRule>>> = LazyLock::new(|| {
    let rows: HashMap<String, VendorRow> = toml::from_str(VENDORS).expect("each row has the form of one");
    let to_key = |KeyRow { place, length_max, is_uuid }| VendorKey {
        place: Place::parse(&place).expect("a key has a place"),
        length_max,
        is_uuid,
    };
    let to_rule = |VendorRow { hosts, window, key }| VendorRule {
        hosts,
        key: key.map(to_key),
        window: window.map(|window| parse_duration(&window).expect("a window is a duration")),
    };
    rows.into_iter().map(|(vendor, row)| (vendor, Arc::new(to_rule(row)))).collect()
});

static PRESETS: LazyLock<[Spanned<DeTable<'static>>; 3]> =
    LazyLock::new(|| [VENDORS, EGRESS, REPEATED].map(|preset| DeTable::parse(preset).expect("a preset is TOML")));

/// The options of the routes to a vendor alone.
fn preset_of(vendor: Vendor) -> Option<&'static DeTable<'static>> {
    PRESETS[0].get_ref().get(vendor.word())?.get_ref().get("route")?.get_ref().as_table()
}

/// The dialect of the route's vendor, where the file names none.
pub(super) fn dialect(section: &Section<'_>) -> Option<Dialect> {
    let word = preset_of(section.choice("vendor"))?.get("dialect")?.get_ref().as_str()?;
    Dialect::parse(word).filter(|_| !section.position("dialect").is_written())
}

/// Puts the options of a route to its vendor behind the table that names the vendor.
pub(super) fn with_preset(section: Section<'_>) -> Section<'_> {
    let vendor: Vendor = section.choice("vendor");
    let Some(rule) = RULES.get(vendor.word()) else { return section };
    let [_, egress, repeated] = &*PRESETS;
    let section = section.with_preset("vendor", egress.get_ref());
    let section = match rule.window {
        Some(_) => section.with_preset("vendor", repeated.get_ref()),
        None => section,
    };
    preset_of(vendor).into_iter().fold(section, |section, preset| section.with_preset("vendor", preset))
}

/// Reads what the vendor promises, and checks what it needs of the rest of the route.
pub(super) fn read(section: &Section<'_>, key: &KeyRule, upstream: Option<&UpstreamTarget>) -> Option<Arc<VendorRule>> {
    let vendor: Vendor = section.choice("vendor");
    let rule = RULES.get(vendor.word());
    let on_unknown = section.choice::<OnUnknown>("on_unknown");
    if on_unknown == OnUnknown::Vendor && rule.is_none_or(|rule| rule.window.is_none()) {
        let message = "is `vendor`, which needs a `vendor` that promises for how long it remembers a key: write `hold`";
        section.conflict(&["on_unknown", "vendor"], message);
    }
    let rule = rule?;
    if section.choice::<DeliveryMode>("delivery") != DeliveryMode::Sync {
        let message = "accepts requests that the vendor's window does not bound: a route to a vendor answers at once";
        section.conflict(&["delivery", "vendor"], message);
    }
    if let Some(UpstreamTarget::Https(authority, _)) = upstream
        && !is_local(authority.host())
        && vendor != Vendor::None
        && !rule.has_host(authority.host())
    {
        let hosts = rule.hosts.join(", ");
        section.conflict(
            &["vendor"],
            format!("its service's `upstream` is no host of the vendor, whose hosts are {hosts}"),
        );
    }
    if let Some(UpstreamTarget::Http(authority) | UpstreamTarget::H2c(authority)) = upstream
        && !is_local(bare_host(authority))
        && bare_host(authority).contains('.')
        && bare_host(authority).parse::<IpAddr>().is_err()
    {
        section.conflict(
            &["vendor"],
            "its service's `upstream` gets what is meant for a vendor in clear: write `https://`",
        );
    }
    if let Some(VendorKey { place: place @ Place::Json(_), .. }) = &rule.key
        && !key.places().any(|from| from == place)
        // The pass-through of requests without a route has no presets.
        && !section.table("key").position("from").is_built_in()
    {
        let message = format!("must have `{place}`: the vendor reads its key there, and Oncegate changes no body");
        section.table("key").problem("from", message);
    }
    Some(Arc::clone(rule))
}

/// Whether the route leads to the Internet, by the name of a host. An address that the file names may be any.
pub(super) fn is_public(vendor: Option<&VendorRule>, upstream: Option<&UpstreamTarget>) -> bool {
    let is_name = |target: &UpstreamTarget| match target {
        UpstreamTarget::Https(authority, _) => {
            let host = bare_host(authority);
            !is_local(host) && host.parse::<IpAddr>().is_err()
        }
        _ => false,
    };
    vendor.is_some() && upstream.is_some_and(is_name)
}
