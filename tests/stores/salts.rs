//! The salt of a service's scopes: with a secret, a reader of the database cannot try credentials, and every key keeps
//! its scope through each rotation.

use std::os::unix::fs::PermissionsExt;

use futures_util::future::join_all;
use oncegate_domain::fingerprint::{Secret, Secrets};
use oncegate_domain::scope::{Salt, Scope};
use oncegate_store::salts::{self, OpenSaltError};

use crate::store_trouble::is_unavailable;
use harness::dump::dump;
use harness::proxy::Setup;
use harness::reload::{RELOADED, reload};
use harness::store_fixture::StoreFixture;
use harness::{Proxy, Store, TEST_TIMEOUT, World, eventually, on_both_stores, route};

const OLD: &str = "secret = \"the old secret of ours\"";
const ROTATED: &str = "secret = \"the new secret of ours\"\nprevious_secrets = [\"the old secret of ours\"]";
const NEW: &str = "secret = \"the new secret of ours\"";
const OTHER: &str = "secret = \"a secret of somebody else\"";

/// A caller with a password that can be guessed.
const CALLER: &str = "hunter2";

fn setup(setup: Setup, top: &str) -> Setup {
    setup.top(top).route(&route("pay", "scope = [\"header:x-caller\"]"))
}

async fn world(store: Store, top: &str) -> World {
    World::with(store, |proxy| setup(proxy, top)).await
}

/// Sends a key's request, and returns whether it was executed or replayed.
async fn pay(world: &World, key: &str) -> String {
    let answer = world.pay(key).field("X-Caller", CALLER).send().await;
    answer.oncegate_status().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

async fn restart(world: &mut World, top: &str) {
    world.restart_as(|proxy| setup(proxy, top)).await;
}

/// Starts another proxy that must fail, and returns its standard error.
async fn refusal(world: &World, top: &str) -> String {
    let other = setup(Proxy::on(&world.store.url()).upstream(world.upstream.address), top);
    let ended = other.fails().await;
    assert_eq!(ended.code, 69, "{}", ended.stderr);
    ended.stderr
}

/// The salts among the 32-byte strings of a dump: under them, the caller has a scope that is in the dump.
fn find_salts(dump: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let candidates = dump.iter().flat_map(|value| value.windows(32));
    let opens = candidates.filter(|candidate| {
        let salt = Salt::new((*candidate).try_into().unwrap());
        let scope = Scope::from_parts(&salt, [("header:x-caller", Some(CALLER.as_bytes()))]);
        dump.iter().any(|value| value == scope.as_bytes())
    });
    opens.map(<[u8]>::to_vec).collect()
}

on_both_stores!(a_reader_of_the_database_can_try_credentials_without_a_secret_only);
async fn a_reader_of_the_database_can_try_credentials_without_a_secret_only(store: Store) {
    let mut world = world(store, "").await;
    assert_eq!(pay(&world, "k-1").await, "executed");
    assert_eq!(world.proxy.stop().await, Some(0));
    let found = find_salts(&dump(&world.store));
    assert_eq!(found.len(), 1, "this test would not find a salt");

    world.proxy = setup(Proxy::on(&world.store.url()).upstream(world.upstream.address), OLD).start().await;
    world.proxy.wait_for_log("Backups that were made before have the salt in clear").await;
    assert_eq!(pay(&world, "k-1").await, "replayed", "the key keeps its scope");
    assert_eq!(pay(&world, "k-2").await, "executed");
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(find_salts(&dump(&world.store)), [] as [Vec<u8>; 0]);
    if let Store::Sqlite(folder) = &world.store {
        for file in std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()) {
            let bytes = std::fs::read(&file).unwrap();
            assert!(memchr::memmem::find(&bytes, &found[0]).is_none(), "{}", file.display());
        }
    }
}

on_both_stores!(a_store_that_is_new_with_a_secret_never_has_its_salt_in_clear);
async fn a_store_that_is_new_with_a_secret_never_has_its_salt_in_clear(store: Store) {
    let mut world = world(store, OLD).await;
    assert_eq!(pay(&world, "k-1").await, "executed");
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(find_salts(&dump(&world.store)), [] as [Vec<u8>; 0]);
    world.proxy = world.setup.start().await;
    assert_eq!(pay(&world, "k-1").await, "replayed");
}

on_both_stores!(a_rotation_of_the_secret_keeps_every_key);
async fn a_rotation_of_the_secret_keeps_every_key(store: Store) {
    let mut world = world(store, OLD).await;
    assert_eq!(pay(&world, "k-1").await, "executed");
    for (top, why) in [
        (ROTATED, "the new secret has a copy"),
        (OLD, "an instance with the configuration from before the rotation starts late"),
        (ROTATED, "the rotation goes on"),
    ] {
        restart(&mut world, top).await;
        assert_eq!(pay(&world, "k-1").await, "replayed", "{why}");
    }
    assert_eq!(pay(&world, "k-2").await, "executed");
    restart(&mut world, NEW).await;
    assert_eq!(pay(&world, "k-2").await, "replayed");
    assert_eq!(pay(&world, "k-1").await, "unknown", "the key is found, and its fingerprint is the old secret's");
    assert_eq!(world.proxy.stop().await, Some(0));
    let refused = refusal(&world, OLD).await;
    assert!(refused.contains("neither `secret` nor `previous_secrets` has it"), "{refused}");
    world.proxy = world.setup.start().await;
    assert_eq!(pay(&world, "k-2").await, "replayed");
    assert_eq!(world.upstream.calls(), 2);
}

on_both_stores!(an_instance_without_the_secret_does_not_start_and_draws_no_salt);
async fn an_instance_without_the_secret_does_not_start_and_draws_no_salt(store: Store) {
    let mut world = world(store, OLD).await;
    assert_eq!(pay(&world, "k-1").await, "executed");
    assert_eq!(world.proxy.stop().await, Some(0));
    for (top, why) in [("", "`secret` is empty"), (OTHER, "neither `secret` nor `previous_secrets` has it")] {
        let refused = refusal(&world, top).await;
        let name = Secret::new("the old secret of ours").name();
        assert!(refused.contains(&format!("encrypted under the secret {name}, and {why}")), "{refused}");
    }
    world.proxy = world.setup.start().await;
    assert_eq!(pay(&world, "k-1").await, "replayed");
}

on_both_stores!(a_reload_with_which_no_instance_could_start_is_refused);
async fn a_reload_with_which_no_instance_could_start_is_refused(store: Store) {
    let world = world(store, "").await;
    let with = |top: &str| setup(Proxy::on(&world.store.url()).upstream(world.upstream.address), top).text();
    assert_eq!(pay(&world, "k-1").await, "executed");
    let refused = "a start with them would fail";
    reload(&world, &with(OLD), RELOADED, 1).await;
    reload(&world, &with(""), refused, 1).await;
    reload(&world, &with(OTHER), refused, 2).await;
    reload(&world, &with(ROTATED), RELOADED, 2).await;
    reload(&world, &with(NEW), RELOADED, 3).await;
    assert_eq!(pay(&world, "k-1").await, "replayed");
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(find_salts(&dump(&world.store)), [] as [Vec<u8>; 0]);
    refusal(&world, OLD).await;
}

#[tokio::test]
async fn services_that_share_a_database_have_salts_and_secrets_of_their_own() {
    let mut world = world(Store::postgres().await, "").await;
    assert_eq!(pay(&world, "k-1").await, "executed");
    let bank = |top: &str| setup(Proxy::on(&world.store.url()).upstream(world.upstream.address), top);
    let other = bank(&format!("service = \"bank\"\n{OTHER}")).start().await;
    assert_eq!(
        other.post("/pay").key("k-1").field("X-Caller", CALLER).send().await.oncegate_status(),
        Some("executed")
    );
    assert_eq!(other.stop().await, Some(0));
    world.crash_and_restart().await;
    assert_eq!(pay(&world, "k-1").await, "replayed", "the other service's secret is not needed");
    assert_eq!(world.proxy.stop().await, Some(0));
    assert_eq!(find_salts(&dump(&world.store)).len(), 1, "the salt of the service without a secret");
}

#[tokio::test]
async fn instances_that_start_together_agree_on_one_salt_whatever_their_secrets() {
    let world = StoreFixture::postgres().await;
    let [none, old, both] =
        [&[][..], &["the old secret of ours"], &["the new secret of ours", "the old secret of ours"]]
            .map(|texts| Secrets::new(texts.iter().map(|text| Secret::new(text))));
    for round in 0..5 {
        let service = format!("shop-{round}").into();
        let starts = (0..12).map(|i| {
            let secrets = [&none, &old, &both][(i + round) % 3];
            salts::open(world.store().as_ref(), &service, secrets, None)
        });
        let mut salts = Vec::new();
        for opened in join_all(starts).await {
            match opened {
                Ok(salt) => salts.push(salt),
                // Another one has sealed the salt under secrets that this one does not have.
                Err(OpenSaltError::Salt(_)) => {}
                Err(OpenSaltError::Store(error)) => panic!("{error:?}"),
            }
        }
        assert!(!salts.is_empty());
        salts.dedup();
        assert_eq!(salts.len(), 1, "round {round}");
    }
}

#[tokio::test]
async fn a_process_that_finds_another_salt_than_its_own_keeps_its_own() {
    let world = StoreFixture::postgres().await;
    let (store, service, none) = (world.store().as_ref(), "shop".into(), Secrets::default());
    let salt = salts::open(store, &service, &none, None).await.unwrap();
    let client = world.database().client().await;
    client.batch_execute("delete from oncegate.salts").await.unwrap();
    assert_eq!(salts::open(store, &service, &none, Some(&salt)).await.unwrap(), salt, "it is stored again");
    assert_eq!(salts::open(store, &service, &none, None).await.unwrap(), salt);
    client.batch_execute("update oncegate.salts set value = sha256('other')").await.unwrap();
    let refused = salts::open(store, &service, &none, Some(&salt)).await.unwrap_err();
    assert!(refused.to_string().contains("another salt"), "{refused}");
    client.batch_execute("update oncegate.salts set value = 'x'").await.unwrap();
    let refused = salts::open(store, &service, &none, None).await.unwrap_err();
    assert!(refused.to_string().contains("has been changed"), "{refused}");
}

#[tokio::test]
async fn a_salt_that_the_store_has_lost_is_stored_again() {
    let mut world = World::with(Store::postgres().await, |proxy| setup(proxy.short_leases(), OLD)).await;
    assert_eq!(pay(&world, "k-1").await, "executed");
    world.store.tamper("delete from oncegate.salts").await;
    world.proxy.wait_for_log("the store had lost the salt").await;
    restart(&mut world, OLD).await;
    assert_eq!(pay(&world, "k-1").await, "replayed");
}

#[tokio::test]
async fn an_instance_whose_salt_was_replaced_ends_and_uses_the_new_one_when_it_is_started_again() {
    let mut world = World::with(Store::postgres().await, |proxy| setup(proxy.short_leases(), "")).await;
    assert_eq!(pay(&world, "k-1").await, "executed");
    // As after a failover that has lost the salt, if another instance starts first.
    world.store.tamper("update oncegate.salts set value = sha256('other')").await;
    assert_eq!(world.proxy.ended().await, Some(69));
    world.proxy.wait_for_log("the store has another salt of this service's scopes than this process uses").await;
    world.crash_and_restart().await;
    assert_eq!(pay(&world, "k-2").await, "executed");
    assert_eq!(world.upstream.calls(), 2);
}

#[tokio::test]
async fn an_instance_whose_salt_was_replaced_accepts_nothing_for_later_while_it_drains() {
    let delivery = route("pay", "delivery = \"async\"");
    let lines = format!("{OLD}\ndrain_delay = \"10s\"");
    let world = World::with(Store::postgres().await, |proxy| proxy.short_leases().top(&lines).route(&delivery)).await;
    assert_eq!(pay(&world, "k-1").await, "queued");
    world.store.tamper("update oncegate.salts set value = sha256('other')").await;
    world.proxy.wait_for_log("draining").await;
    is_unavailable(&world.pay("k-2").field("X-Caller", CALLER).send().await);
    assert_ne!(pay(&world, "k-1").await, "rejected", "an earlier request is answered as ever");
}

#[tokio::test]
async fn an_instance_that_cannot_read_the_stored_salt_goes_on_with_its_own_and_says_so() {
    let world = World::with(Store::postgres().await, |proxy| setup(proxy.short_leases(), OLD)).await;
    assert_eq!(pay(&world, "k-1").await, "executed");
    world.store.tamper("update oncegate.salts set value = value || 'x'").await;
    let line = world.proxy.wait_for_log("cannot read the one in the store").await;
    assert_eq!(line["level"], "WARN");
    assert_eq!((&*pay(&world, "k-1").await, &*pay(&world, "k-2").await), ("replayed", "executed"));
}

#[tokio::test]
async fn an_instance_that_cannot_read_the_salt_stored_after_a_loss_starts_nothing_until_it_can() {
    let later = route("later", "delivery = \"async\"\nscope = [\"header:x-caller\"]");
    let routes = |proxy: Setup| setup(proxy.short_leases(), OLD).route(&later);
    let world = World::with(Store::postgres().await, routes).await;
    assert_eq!(pay(&world, "k-1").await, "executed");
    // Another process is the first to store one.
    let first = "create table kept as select value from oncegate.salts;
        create function be_first() returns trigger language plpgsql as $$ begin
          if pg_trigger_depth() > 1 then return new; end if;
          insert into oncegate.salts (service, value) values (new.service, 'x');
          return null;
        end $$;
        create trigger be_first before insert on oncegate.salts for each row execute function be_first();
        delete from oncegate.salts";
    world.store.tamper(first).await;
    world.proxy.wait_for_log("It starts nothing until it can").await;
    for request in [world.pay("k-2"), world.post("/later").key("k-2").body("x")] {
        is_unavailable(&request.field("X-Caller", CALLER).send().await);
    }
    assert_eq!(pay(&world, "k-1").await, "replayed");
    world.store.tamper("update oncegate.salts set value = (select value from kept)").await;
    eventually(TEST_TIMEOUT, async || (pay(&world, "k-2").await == "executed").then_some(())).await;
}

on_both_stores!(a_start_says_what_a_reader_of_the_database_learns);
async fn a_start_says_what_a_reader_of_the_database_learns(store: Store) {
    let mut world = world(store, "").await;
    let line = world.proxy.wait_for_log("can guess callers' credentials and short bodies").await;
    // The file of the embedded store is the proxy's own; a server has other users.
    let level = if matches!(world.store, Store::Postgres(_)) { "WARN" } else { "INFO" };
    assert_eq!(line["level"], level);
    restart(&mut world, OLD).await;
    assert_eq!(world.proxy.wait_for_log("a reader of the database reads stored responses;").await["level"], "INFO");
    world.restart_as(|proxy| setup(proxy, OLD).store("encrypt = true")).await;
    assert!(!world.proxy.output().contains("a reader of the database"), "{}", world.proxy.output());
}

#[tokio::test]
async fn a_file_with_a_secret_that_everybody_can_read_is_warned_about() {
    let world = world(Store::sqlite(), OLD).await;
    world.proxy.wait_for_log("secret: everybody on this machine can read").await;
    assert!(!world.proxy.output().contains("store.url: everybody"), "the database file was made for its owner alone");
    assert_eq!(world.proxy.stop().await, Some(0));
    std::fs::set_permissions(world.store.sqlite_file(), PermissionsExt::from_mode(0o644)).unwrap();
    let proxy = world.setup.start().await;
    proxy.wait_for_log("store.url: everybody on this machine can read").await;
}
