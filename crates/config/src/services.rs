//! Reads and checks `[[services]]`, and the service at the top of the file.

use std::sync::Arc;

use super::options::options;
use super::reader::Section;
use super::route_options::{DEFAULTS, parse_host};
use super::value_parsers::{OwnListener, is_of_lower_name, name, read_upstream};
use oncegate_settings::{AdminToken, UpstreamTarget};

options! {
    /// The options of `[[services]]`.
    struct ServiceOptions {
        /// the name, which is part of every key of its routes
        name: Text;
        /// the host, or the hosts, whose requests all go to the service
        host: TextOrTexts = [];
        /// the service, as `http://host:port` or `https://host:port`
        upstream: Concealed;
        /// the token of operators who see this service alone; empty for none
        token: Concealed = "" => Option<AdminToken>, optional(AdminToken::parse);
        /// fields for each of its routes that does not write them itself
        defaults: Table(DEFAULTS) = {};
    }
}

/// A service as the file has it, with the defaults of its routes.
pub(super) struct ServiceTable<'a> {
    pub name: Arc<str>,
    /// Empty for the one at the top.
    pub hosts: Vec<Box<str>>,
    /// `None` where it has a problem.
    pub upstream: Option<Arc<UpstreamTarget>>,
    pub token: Option<AdminToken>,
    pub defaults: Section<'a>,
    pub section: Section<'a>,
}

/// The services, the one at the top first. That is there where the file has an `upstream` there, or no other service.
pub(super) fn read<'a>(top: &Section<'a>, defaults: &Section<'a>, listeners: &[OwnListener]) -> Vec<ServiceTable<'a>> {
    let sections = top.tables("services");
    let mut services: Vec<ServiceTable<'a>> = Vec::new();
    if sections.is_empty() || top.has("upstream") {
        let (name, upstream) = (top.parsed("service", parse_service), read_upstream(top, listeners));
        let (defaults, section) = (defaults.clone(), top.clone());
        services.push(ServiceTable { name, hosts: Vec::new(), upstream, token: None, defaults, section });
    }
    let admin = top.table("admin");
    let of_gate = ["token", "read_token"].map(|key| admin.optional(key, AdminToken::parse));
    for section in sections {
        let upstream = read_upstream(&section, listeners);
        let mut hosts = section.values("host", parse_host);
        if hosts.is_empty() && section.is_right(&["host"]) {
            section.missing("host", "is missing: write the one whose requests go to the service, or a list");
        }
        let ServiceOptions { token } = ServiceOptions::read(&section);
        let mut others = of_gate.iter().chain(services.iter().map(|other| &other.token));
        if token.is_some() && others.any(|other| *other == token) {
            section
                .problem("token", "is another service's or the gate's too: its operators would see more than this one");
        }
        let Some(name) = section.required("name", parse_service) else { continue };
        let show = |other: &ServiceTable<'_>, key: &str| section.reader().show(&other.section.position(key));
        if let Some(other) = services.iter().find(|other| other.name == name) {
            let key = if other.hosts.is_empty() { "service" } else { "name" };
            section.problem("name", format!("is another service's name too: `{name}` ({})", show(other, key)));
        }
        if let Some((other, host)) = shared_host(&services, &hosts) {
            let (of, place) = (&other.name, show(other, "host"));
            section.problem("host", format!("is the host of the service `{of}` too: `{host}` ({place})"));
        }
        if hosts.is_empty() {
            // Its problem is reported. Without any host it would be the service at the top, and cause more problems.
            hosts.push(Box::default());
        }
        let defaults = section.table("defaults").into_defaults().with_fallback(defaults);
        services.push(ServiceTable { name, hosts, upstream, token, defaults, section });
    }
    services
}

/// The names of the services, without a check.
pub(super) fn names(top: &Section<'_>) -> Vec<Arc<str>> {
    let sections = top.tables("services");
    let at_top = sections.is_empty() || top.has("upstream");
    let own = at_top.then(|| top.parsed("service", parse_service));
    own.into_iter().chain(sections.iter().filter_map(|section| section.required("name", parse_service))).collect()
}

fn shared_host<'s, 'a>(
    services: &'s [ServiceTable<'a>],
    hosts: &'s [Box<str>],
) -> Option<(&'s ServiceTable<'a>, &'s str)> {
    let mut of_service = services.iter().flat_map(|service| service.hosts.iter().map(move |host| (service, &**host)));
    of_service.find(|(_, host)| hosts.iter().any(|own| **own == **host))
}

pub(super) fn parse_service(text: &str) -> Result<Arc<str>, String> {
    let wrong = "is no name of a service: write 1 to 63 small letters, digits, `_`, `.` and `-`";
    name(text, 63, is_of_lower_name, wrong)
}
