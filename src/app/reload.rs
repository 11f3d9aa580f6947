//! Reloads the configuration, or keeps the running one and logs why.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::key_changes::{KeyChanges, LookupChange, compare_services};
use super::keyed_route::KeyedRoute;
use super::route_identities;
use oncegate_config::{self as config, ConfigProblems};
use oncegate_domain::state::StateKind;
use oncegate_engine::instance::Instance;
use oncegate_engine::instance::event_routes;
use oncegate_engine::instance::metrics::Metrics;
use oncegate_settings::{self as settings, Config, Consumer, DeliveryMode, LoadedConfig, SourceFiles, StoreLocation};
use oncegate_store::admin::KeyCount;
use oncegate_store::salts::{self, OpenSaltError};
use oncegate_store::{LeaseRenewal, StoreError};

/// The time between two reads of the file. Mounted configurations change by swapping a symbolic link, which file
/// notifications miss; reading some kilobytes costs nothing.
const POLL_EVERY: Duration = Duration::from_secs(2);

/// The source of the configuration.
pub struct ConfigSource {
    /// The file to watch, if there is one.
    file: Option<PathBuf>,
    /// The file's text before the configuration was loaded for the first time: every later change is noticed.
    last_text: Option<Vec<u8>>,
    /// Reads and checks it again, with the same flags.
    load: LoadConfig,
}

pub(super) type LoadConfig = Arc<dyn Fn() -> Result<LoadedConfig, ConfigProblems> + Send + Sync>;

impl ConfigSource {
    /// Reads the file's text; to be called before the configuration is loaded.
    pub fn new(
        file: Option<PathBuf>,
        load: impl Fn() -> Result<LoadedConfig, ConfigProblems> + Send + Sync + 'static,
    ) -> Self {
        let last_text = read_file(file.as_ref());
        Self { file, last_text, load: Arc::new(load) }
    }

    /// The function that reads and checks the configuration.
    pub(super) fn loader(&self) -> LoadConfig {
        Arc::clone(&self.load)
    }

    /// The whole path of the file, or that there is none.
    pub fn show(&self) -> String {
        self.file.as_deref().map(settings::show_whole_path).unwrap_or_else(|| config::NO_FILE.to_owned())
    }
}

fn read_file(file: Option<&PathBuf>) -> Option<Vec<u8>> {
    std::fs::read(file?).ok()
}

/// Reloads on SIGHUP and when the file, or another file that it names, has changed, until `stop`. Sends each new
/// configuration to `sender`.
pub async fn reload_on_changes(
    mut source: ConfigSource,
    mut hangup: Signal,
    sender: watch::Sender<Arc<Config>>,
    instance: Arc<Instance>,
    stop: CancellationToken,
) {
    let metrics = &instance.observability.metrics;
    note_success(metrics);
    let mut files = sender.borrow().files.clone();
    loop {
        let is_requested = tokio::select! {
            () = stop.cancelled() => return,
            _ = hangup.recv() => true,
            () = tokio::time::sleep(POLL_EVERY) => false,
        };
        let (text, current_files) = read_files(source.file.clone(), files.clone()).await;
        // A missing file is being replaced, or was removed: neither asks for a change.
        let is_changed = text.is_some() && text != source.last_text;
        let is_renewed = current_files.as_ref().is_some_and(|current| *current != files);
        if is_requested || is_changed || is_renewed {
            source.last_text = text;
            // The version that was loaded counts, not the one of a moment before.
            files = match apply_reload(&source, &sender, &instance, is_requested).await {
                Ok(()) => {
                    note_success(metrics);
                    instance.reload_state.note_success();
                    sender.borrow().files.clone()
                }
                Err(problems) => {
                    instance.reload_state.note_refusal(problems);
                    metrics.reload_successful.set(0);
                    metrics.reload_failures.inc();
                    current_files.unwrap_or(files)
                }
            };
        }
    }
}

/// Records in the metrics that the newest configuration is the running one.
fn note_success(metrics: &Metrics) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    metrics.reloaded_at.set(now.as_secs().cast_signed());
    metrics.reload_successful.set(1);
}

/// Reads the configuration's file and those that it names, on a thread that may block: a file may be on another
/// machine.
async fn read_files(file: Option<PathBuf>, files: SourceFiles) -> (Option<Vec<u8>>, Option<SourceFiles>) {
    let read = tokio::task::spawn_blocking(move || (read_file(file.as_ref()), files.read_again()));
    read.await.unwrap_or_default()
}

/// Loads the configuration and sends it: it is the running one then.
///
/// # Errors
/// The problems of the new configuration, each a sentence without secrets, which are logged; the running one stays.
async fn apply_reload(
    source: &ConfigSource,
    sender: &watch::Sender<Arc<Config>>,
    instance: &Instance,
    is_requested: bool,
) -> Result<(), Vec<String>> {
    let loaded = (source.load)().map_err(|problems| {
        for problem in problems.iter() {
            tracing::error!(%problem, "the configuration has a problem; the running one stays");
        }
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    })?;
    let restart_changes = instance.config.list_restart_changes(&loaded.start);
    let (running, new) = (Arc::clone(&sender.borrow()), loaded.into_reload(&instance.config));
    let KeyChanges { lookups, unguarded } = compare_services(&running, &new);
    refuse_lost_keys(&lookups, &running, &new)?;
    if !is_requested {
        refuse_lost_files(&running, &new)?;
    }
    check_services(&running, &new, instance).await?;
    store_changes(&running, &new, instance).await?;
    for lost in &unguarded {
        tracing::warn!(
            requests = lost.requests,
            route = %lost.before,
            changed = lost.changed,
            "these requests are not guarded any more as they were: retries of earlier ones are executed again"
        );
    }
    for what in restart_changes {
        tracing::warn!("{what} has changed, which takes effect with a restart");
    }
    for warning in &new.warnings {
        tracing::warn!("{warning}");
    }
    route_identities::publish(instance, &new);
    let changes = running.list_changes(&new);
    match changes.is_empty() {
        true => tracing::info!("the configuration was reloaded, and nothing in it has changed"),
        false => tracing::info!(changed = changes.join(", "), "the configuration was reloaded"),
    }
    sender.send_replace(Arc::new(new));
    Ok(())
}

/// Refuses a configuration under which requests or messages would not find their earlier keys.
fn refuse_lost_keys(lookups: &[LookupChange], running: &Config, new: &Config) -> Result<(), Vec<String>> {
    for change in lookups {
        tracing::error!(
            requests = change.requests,
            route = %change.before,
            new_route = %change.now,
            changed = change.changed,
            "these requests would not find their earlier keys any more, and their retries would be executed again; the \
             running configuration stays. A restart needs store.accept_route_changes; a renamed route needs its earlier name in `was`"
        );
    }
    if !lookups.is_empty() {
        return Err(lookups.iter().map(ToString::to_string).collect());
    }
    let Some((queue, what)) = find_consumer_change(running, new) else { return Ok(()) };
    tracing::error!(
        %queue,
        "{what} has changed, which would make the keys of this queue's messages unfindable; the running \
         configuration stays. Restart to change it"
    );
    Err(vec![format!(
        "queue `{queue}`: {what} has changed, and its messages would not find their earlier keys; restart to change it"
    )])
}

/// Refuses a configuration that lacks a file which a pattern had included: it may be written anew at this moment, and
/// until then its requests would pass unguarded. Who means it sends SIGHUP.
fn refuse_lost_files(running: &Config, new: &Config) -> Result<(), Vec<String>> {
    let gone: Vec<_> = running.files.list_gone(&new.files).collect();
    if gone.is_empty() {
        return Ok(());
    }
    let files = gone.join(", ");
    tracing::error!(files, "included files are gone; the running configuration stays. SIGHUP loads what is left");
    Err(vec![format!("included files are gone, and SIGHUP loads what is left: {files}")])
}

/// Refuses to take away a service with accepted requests, which nobody would deliver, and to bring one back under which
/// keys that the store remembers would not be found. Tells the store which services this instance has: a purge waits
/// for it.
async fn check_services(running: &Config, new: &Config, instance: &Instance) -> Result<(), Vec<String>> {
    let is_same = running.service_names().eq(new.service_names());
    if is_same || !instance.joined.is_cancelled() {
        return Ok(());
    }
    let away = |error: StoreError| {
        tracing::error!(%error, "the store does not say what it has of the services; the running configuration stays");
        vec![format!("the store does not say what it has of the services: {error}")]
    };
    for service in running.service_names().filter(|service| new.service(service).is_none()) {
        let counted = instance.store.count_keys(Arc::clone(service)).await.map_err(away)?.counts;
        // A delivery that runs may have to be tried again.
        let has_deliveries = |route: &str| {
            let named = running.routes_of(service).find(|own| own.has_name(route));
            named.is_some_and(|route| route.options.delivery == DeliveryMode::Async)
        };
        let is_queued = |of: &&KeyCount| match of.state {
            StateKind::Queued => true,
            StateKind::InFlight => has_deliveries(&of.route),
            _ => false,
        };
        let queued: u64 = counted.iter().filter(is_queued).map(|of| of.keys).sum();
        if queued > 0 {
            tracing::error!(%service, queued, "the service is gone, and has accepted requests; the running configuration stays");
            return Err(vec![format!("service `{service}` is gone, and {queued} accepted requests wait for it")]);
        }
    }
    let remembered = route_identities::find_remembered(&instance.store, new).await.map_err(away)?;
    let mut of_new = remembered;
    of_new.retain(|remembered| running.service(&remembered.service).is_none());
    refuse_lost_keys(&route_identities::compare_with_remembered(&of_new, new).changes.lookups, running, new)?;
    let renewal = LeaseRenewal {
        instance: instance.instance_lease.id(),
        services: new.joined_service_names(),
        expiry: instance.instance_lease.expiry(),
        purges_seen: Some(instance.cache.purge_count()),
        hold_ttls_until: instance.store_clock.hold_to_store(),
    };
    instance.store.renew_lease(renewal).await.map(drop).map_err(away)
}

/// Has the store take what of the new configuration it must know, or refuses that configuration.
async fn store_changes(running: &Config, new: &Config, instance: &Instance) -> Result<(), Vec<String>> {
    let has_new_service = new.service_names().any(|name| running.service(name).is_none());
    if (has_new_service || new.secrets.names() != running.secrets.names())
        && let Err(error) = open_salts(instance, new).await
    {
        let problem = match has_new_service {
            true => "the salts of the new services cannot be read or stored, and a start would fail",
            false => "`secret` or `previous_secrets` has changed, and a start with them would fail",
        };
        tracing::error!(error = %error, "{problem}; the running configuration stays");
        return Err(vec![format!("{problem}: {error}")]);
    }
    relocate_store(running, new, instance).await?;
    // Before a request meets the new routes: its settlement must have its events. The running ones go on until then.
    if instance.joined.is_cancelled()
        && (!running.events.is_empty() || !new.events.is_empty())
        && let Err(error) = event_routes::store_routes(&instance.store, &[running, new]).await
    {
        let problem = "the store has not taken which routes have events";
        tracing::error!(%error, "{problem}; the running configuration stays");
        return Err(vec![format!("{problem}: {error}")]);
    }
    Ok(())
}

/// Lets the store use the new `store.url`, where it can. The last check of a reload, because it changes something.
///
/// # Errors
/// The new URL leads to another store, or cannot be used. Where only a file that it names has changed, that is logged
/// alone: the database may get the new password later than the file, and each new connection reads the file again.
async fn relocate_store(running: &Config, new: &Config, instance: &Instance) -> Result<(), Vec<String>> {
    let (before, location) = (&running.store_url, &new.store_url);
    if is_another_store(location, before) {
        tracing::error!(why = ANOTHER_STORE, "store.url has changed, and the running configuration stays");
        return Err(vec![format!("store.url has changed: {ANOTHER_STORE}")]);
    }
    let (StoreLocation::Postgres(before), StoreLocation::Postgres(url)) = (before, location) else { return Ok(()) };
    if before == url {
        return Ok(());
    }
    let Err(refusal) = instance.store.relocate(location).await else { return Ok(()) };
    let why = refusal.describe();
    if before.is_of_same_text(url) {
        tracing::warn!(why, "a file of store.url has changed, and the earlier connections stay");
        return Ok(());
    }
    tracing::error!(why, "store.url has changed, and the running configuration stays");
    Err(vec![format!("store.url has changed: {why}")])
}

/// The reason for which a store that is another one is refused.
pub(super) const ANOTHER_STORE: &str =
    "it leads to another store, which does not know the keys: their retries would be executed again";

/// Whether it is not this process's store, as far as that shows without a connection.
pub(super) fn is_another_store(url: &StoreLocation, own: &StoreLocation) -> bool {
    match (url, own) {
        (StoreLocation::Sqlite(path), StoreLocation::Sqlite(own)) => {
            path != own && path.canonicalize().ok().is_none_or(|path| own.canonicalize().ok() != Some(path))
        }
        (StoreLocation::Postgres(_), StoreLocation::Postgres(_)) | (StoreLocation::Memory, StoreLocation::Memory) => {
            false
        }
        _ => true,
    }
}

/// Stores the salts as the new secrets demand, and finds those of new services.
async fn open_salts(instance: &Instance, new: &Config) -> Result<(), OpenSaltError> {
    // A provisional salt must not get into the store.
    if !instance.joined.is_cancelled() {
        return Err(StoreError::Unavailable("it has not been reached since the start".into()).into());
    }
    for service in new.service_names() {
        let salt = instance.salts.of(service);
        salt.set_stored(salts::open(&instance.store, service, &new.secrets, salt.stored()).await?);
    }
    Ok(())
}

/// The queue, and the part of the identity of its messages' keys, that has changed, for queues that stay.
fn find_consumer_change(running: &Config, new: &Config) -> Option<(String, &'static str)> {
    fn route_of<'a>(config: &'a Config, consumer: &Consumer) -> KeyedRoute<'a> {
        let found = config.routes.iter().find(|route| route.name == consumer.route);
        KeyedRoute::from(&**found.expect("a consumer's route is configured"))
    }
    let find_change = |one: &Consumer, other: &Consumer| {
        if one.scope != other.scope {
            Some("scope")
        } else if one.key != other.key {
            Some("the key's place")
        // A route with another name may find the same keys.
        } else if !route_of(running, one).finds_same_messages(&route_of(new, other)) {
            Some("how its route finds keys")
        } else if one.path != other.path {
            Some("path")
        } else {
            None
        }
    };
    new.consumers.iter().find_map(|consumer| {
        let before = running.consumers.iter().find(|before| before.shares_messages_with(consumer))?;
        find_change(before, consumer).map(|what| (consumer.source.to_string(), what))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_config::{self as config, Overrides, ProcessEnvironment};

    fn config(route: &str, consumer: &str) -> Config {
        let service = if route.contains("service = 's'") {
            "[[services]]\nname = 's'\nhost = 'h'\nupstream = 'http://s'\n"
        } else {
            ""
        };
        let file = format!(
            "upstream = 'http://a'\n{service}[[routes]]\npath = '/pay'\n{route}\n[[consumers]]\namqp = 'amqp://b'\n\
             queue = 'q'\n{consumer}"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncegate.toml");
        std::fs::write(&path, file).unwrap();
        config::load(Some(&path), &Overrides::default(), &ProcessEnvironment).unwrap().live
    }

    #[test]
    fn a_consumers_route_may_have_another_name_as_long_as_it_finds_the_same_keys() {
        let pay = |lines: &str| config(&format!("name = 'pay'\n{lines}"), "route = 'pay'");
        let new = |lines: &str| config(&format!("name = 'new'\n{lines}"), "route = 'new'");
        for (running, new, changed) in [
            (pay(""), new(""), None),
            (pay("space = 'route'"), new("space = 'route'"), Some("how its route finds keys")),
            (pay("space = 'route'"), new("space = 'route'\nwas = ['pay']"), None),
            (pay(""), new("service = 's'"), Some("how its route finds keys")),
            (pay(""), pay("key = { syntax = 'uuid' }"), Some("how its route finds keys")),
            (pay("dialect = 'mcp'"), pay("dialect = 'mcp'\nservice = 's'"), Some("how its route finds keys")),
            (pay("dialect = 'mcp'"), pay("dialect = 'a2a'"), Some("how its route finds keys")),
            (pay("dialect = 'mcp'"), pay("dialect = 'mcp'\noperations = ['a']"), Some("how its route finds keys")),
            (
                pay("dialect = 'mcp'\nspace = 'service'"),
                pay("dialect = 'mcp'\nspace = 'service'\noperations = ['a']"),
                None,
            ),
            // A message's scope and key are its consumer's.
            (pay(""), pay("scope = ['none']\nkey = { from = 'header:k' }"), None),
            (pay(""), config("name = 'pay'", "route = 'pay'\nkey = 'message-id'"), Some("the key's place")),
        ] {
            assert_eq!(find_consumer_change(&running, &new).map(|(_, what)| what), changed);
        }
    }
}
