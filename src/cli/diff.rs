//! `oncegate diff`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::check::remembered_changes;
use super::{CommandError, load_without_secrets, print};
use crate::app::key_changes::{KeyChanges, compare_services};
use crate::app::route_identities::RememberedChanges;
use oncegate_config::{Overrides, ProcessEnvironment};
use oncegate_settings::{Config, LoadedConfig, Route};

/// The exit code where requests differ, and each one that was guarded still is, and finds its key.
const HARMLESS: u8 = 3;
/// The exit code where requests are not guarded any more as they were, or do not find their earlier keys.
const DANGEROUS: u8 = 4;

#[derive(Args)]
pub(super) struct DiffArguments {
    /// The running configuration, and the new one; with --connect the new one alone
    #[arg(value_name = "FILE", required = true, num_args = 1..=2)]
    files: Vec<PathBuf>,
    /// Compares with what the store remembers of the instances' last start or reload; needs the secrets
    #[arg(long)]
    connect: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// The difference between two configurations.
#[derive(Default)]
struct ConfigDifference {
    keys: KeyChanges,
    /// Routes whose requests are answered otherwise, with the settings that differ.
    answered: Vec<(String, Vec<String>)>,
    /// Services and requests that were not there, or are not any more.
    services: Vec<String>,
    guarded: Vec<String>,
    /// The options that differ and are of no route and no service, such as those of the policy.
    options: Vec<String>,
    /// Whether another version has remembered the routes in a form of its own: its keys may be found or not.
    is_unreadable: bool,
}

pub(super) fn run(arguments: &DiffArguments) -> Result<u8, CommandError> {
    let difference = match (&arguments.files[..], arguments.connect) {
        ([new], true) => compare_with_store(&load_whole(new)?)?,
        ([old, new], false) => compare(&load_without_secrets(old)?.live, &load_without_secrets(new)?.live),
        ([_], false) => {
            return Err(CommandError::Usage("name the running file and the new one, or use --connect".into()));
        }
        _ => return Err(CommandError::Usage("with --connect, name the new file alone".into())),
    };
    print(&if arguments.json { format!("{:#}\n", difference.to_json()) } else { difference.to_text() })?;
    Ok(difference.code())
}

fn load_whole(file: &Path) -> Result<LoadedConfig, CommandError> {
    oncegate_config::load(Some(file), &Overrides::default(), &ProcessEnvironment).map_err(CommandError::Config)
}

fn compare_with_store(new: &LoadedConfig) -> Result<ConfigDifference, CommandError> {
    let (_, RememberedChanges { changes, is_unreadable, digest }) = remembered_changes(new)?;
    let is_accepted = new.start.store.accept_route_changes.as_deref() == Some(&*digest);
    let mut keys = changes;
    if is_accepted {
        // The operator vouches for it that no other instance finds the keys elsewhere.
        keys.lookups.clear();
    }
    Ok(ConfigDifference { keys, is_unreadable: is_unreadable && !is_accepted, ..ConfigDifference::default() })
}

fn compare(old: &Config, new: &Config) -> ConfigDifference {
    let mut services = Vec::new();
    for before in &old.services {
        let Some(now) = new.service(&before.name) else {
            let top = new.services.iter().find(|service| service.hosts.is_empty());
            let fate = top.map_or("get 421".to_owned(), |top| format!("go to {}", top.name));
            services.push(format!("{}: is gone, and its requests {fate}", before.name));
            continue;
        };
        if now.upstream != before.upstream {
            services.push(format!("{}: its upstream is {}, and was {}", before.name, now.upstream, before.upstream));
        }
        if now.hosts != before.hosts {
            let [was, is] = [before, now].map(|service| service.hosts.join(", "));
            services.push(format!("{}: its hosts are `{is}`, and were `{was}`", before.name));
        }
    }
    let is_new = |name: &&std::sync::Arc<str>| old.service(name).is_none();
    services.extend(new.service_names().filter(is_new).map(|name| format!("{name}: is new")));
    let by_name: BTreeMap<_, _> = old.routes.iter().map(|route| (&route.name, route)).collect();
    let (mut answered, mut guarded) = (Vec::new(), Vec::new());
    for now in &new.routes {
        let before = now.names().find_map(|name| by_name.get(name));
        let Some(before) = before else {
            guarded.push(describe_requests(now));
            continue;
        };
        let changed = changed_settings(before, now);
        if !changed.is_empty() {
            answered.push((now.name.to_string(), changed));
        }
    }
    // What routes and services are made of is compared by what it comes to.
    let is_other = |option: &String| {
        let table = option.split(['.', '[']).next().unwrap_or_default();
        !["routes", "services", "defaults", "service", "upstream", "include"].contains(&table)
    };
    let written = [old, new].map(|config| config.written.without_files());
    let options = written[0].list_changes(&written[1]).into_iter().filter(is_other).collect();
    ConfigDifference { keys: compare_services(old, new), answered, services, guarded, options, is_unreadable: false }
}

fn describe_requests(route: &Route) -> String {
    let matches = route.settings().into_iter().find(|setting| setting.label == "matches");
    format!("{}: {}", route.name, matches.map(|setting| setting.value).unwrap_or_default())
}

fn changed_settings(before: &Route, now: &Route) -> Vec<String> {
    let [was, is] = [before, now].map(|route| {
        route.settings().into_iter().map(|setting| (setting.label, setting.value)).collect::<BTreeMap<_, _>>()
    });
    let labels = was.keys().chain(is.keys()).collect::<std::collections::BTreeSet<_>>();
    let off = || "off".to_owned();
    let changed = labels.into_iter().filter(|label| was.get(*label) != is.get(*label));
    changed
        .map(|label| {
            let [was, is] = [&was, &is].map(|settings| settings.get(label).cloned().unwrap_or_else(off));
            format!("{label}: {was} -> {is}")
        })
        .collect()
}

impl ConfigDifference {
    fn code(&self) -> u8 {
        let is_dangerous = self.is_unreadable || !self.keys.lookups.is_empty() || !self.keys.unguarded.is_empty();
        let is_same = [&self.services, &self.guarded, &self.options].iter().all(|list| list.is_empty());
        let is_same = self.answered.is_empty() && is_same;
        match (is_dangerous, is_same) {
            (true, _) => DANGEROUS,
            (false, false) => HARMLESS,
            (false, true) => super::DONE,
        }
    }

    fn to_text(&self) -> String {
        let mut lines = Vec::new();
        if self.is_unreadable {
            lines.push("not found  another version has remembered the routes, which cannot be compared".to_owned());
        }
        lines.extend(self.keys.unguarded.iter().map(|change| format!("unguarded  {change}")));
        lines.extend(self.keys.lookups.iter().map(|change| format!("not found  {change}")));
        lines.extend(self.services.iter().map(|change| format!("service    {change}")));
        lines.extend(self.guarded.iter().map(|change| format!("new route  {change}")));
        for (route, settings) in &self.answered {
            lines.extend(settings.iter().map(|setting| format!("otherwise  {route}: {setting}")));
        }
        lines.extend(self.options.iter().map(|option| format!("option     {option}")));
        if lines.is_empty() {
            lines.push("no request is treated otherwise".into());
        }
        lines.join("\n") + "\n"
    }

    fn to_json(&self) -> Value {
        let unguarded =
            self.keys.unguarded.iter().map(
                |change| json!({ "requests": change.requests, "route": &*change.before, "changed": change.changed }),
            );
        let lookups = self.keys.lookups.iter().map(|change| {
            json!({
                "requests": change.requests, "route": &*change.before, "new_route": &*change.now,
                "changed": change.changed,
            })
        });
        let answered = self.answered.iter().map(|(route, changed)| json!({ "route": route, "changed": changed }));
        json!({
            "unguarded": unguarded.collect::<Vec<_>>(),
            "found_otherwise": lookups.collect::<Vec<_>>(),
            "services": self.services,
            "new_routes": self.guarded,
            "options": self.options,
            "answered_otherwise": answered.collect::<Vec<_>>(),
            "dangerous": self.code() == DANGEROUS,
        })
    }
}
