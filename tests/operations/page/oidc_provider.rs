//! Signing in with a real OpenID provider, the npm package `oidc-provider`, in a real browser.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::four_eyes::{audit, id_of, states};
use super::oidc::{TOKEN, lines};
use harness::browser::{Browser, ENTER, SPACE, Scripts, TAB};
use harness::client::Client;
use harness::oidc_issuer::{CLIENT, SECRET};
use harness::{Answer, Store, TEST_TIMEOUT, Upstream, World, eventually, find_program, root, skip};

/// The running provider. It ends when this value is dropped, or with the test's process.
struct Provider {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Provider {
    async fn start(issuer: &str, page: &str) -> Self {
        let script = root().join("tests/operations/page/oidc_provider.mjs");
        let mut command = Command::new("node");
        command.arg(script).args([issuer, page, CLIENT, SECRET]).kill_on_drop(true);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut provider = Self { process, input, output: BufReader::new(output).lines() };
        provider.wait_for_line("ready").await;
        provider
    }

    async fn wait_for_line(&mut self, line: &str) {
        let printed = timeout(TEST_TIMEOUT, self.output.next_line()).await.expect("the provider prints nothing");
        assert_eq!(printed.unwrap().as_deref(), Some(line));
    }

    async fn rotate_key(&mut self) {
        self.input.write_all(b"\n").await.unwrap();
        self.wait_for_line("rotated").await;
    }
}

/// A browser, a proxy that knows one unknown key, and the provider that signs people in to its page.
struct SignInFixture {
    browser: Browser,
    world: World,
    provider: Provider,
    issuer: String,
    /// The address of the page.
    page: String,
    /// The path of the key.
    key: String,
}

impl SignInFixture {
    /// Starts them with further lines in `[admin]`; returns `None` with a message if a program is not installed.
    async fn start(more: &str) -> Option<Self> {
        let package = root().join("examples/recipes/node_modules/oidc-provider");
        if find_program(&["node"]).is_none() || !package.exists() {
            skip("no oidc-provider (apt-get install nodejs npm; npm ci --prefix examples/recipes --ignore-scripts)");
            return None;
        }
        let browser = Browser::start(Scripts::Off).await?;
        // Two addresses: the provider is another site, and neither gets the other's cookies.
        let (issuer, admin) = (Upstream::unused_address().await, Upstream::unused_address().await);
        let (issuer, page) = (format!("http://{issuer}"), format!("http://{admin}"));
        let provider = Provider::start(&issuer, &page).await;
        let lines = lines(&issuer, &page, more);
        let setup =
            |setup: harness::Setup| setup.admin(&lines).environment("ONCEGATE_ADMIN_LISTEN", &admin.to_string());
        let world = World::with(Store::sqlite(), setup).await;
        world.upstream.then(Answer::close());
        assert_eq!(world.pay("k-1").send().await.status, 502);
        let key = format!("/keys/{}", id_of(&world, "k-1").await);
        Some(Self { browser, world, provider, issuer, page, key })
    }

    async fn open(&self, path: &str) {
        self.browser.open(&format!("{}{path}", self.page)).await;
    }

    async fn follow(&self, selector: &str) {
        self.browser.tab_to(selector).await;
        self.browser.press(&[ENTER]).await;
    }

    /// Opens a page without a session, and follows the link to the provider.
    async fn begin_sign_in(&self, path: &str) {
        self.browser.forget_cookies().await;
        self.open(path).await;
        self.follow("a[href*='/sign-in/oidc']").await;
    }

    /// Fills in the provider's pages as this person.
    async fn log_in(&self, person: &str) {
        self.browser.wait_for_text("[ Cancel ]").await;
        self.browser.tab_to("[name=login]").await;
        self.browser.type_text(&format!("{person}{TAB}any password{ENTER}")).await;
        self.browser.wait_for_text("Authorize").await;
        self.follow("[type=submit]").await;
    }

    /// Signs in without an earlier session, and waits for these words on the page.
    async fn sign_in(&self, person: &str, path: &str, words: &str) {
        self.begin_sign_in(path).await;
        self.log_in(person).await;
        self.browser.wait_for_text(words).await;
    }

    /// Confirms a decision about the key with its risk, and waits for these words on the page that follows.
    async fn decide(&self, action: &str, words: &str) {
        self.open(&format!("{}/{action}", self.key)).await;
        self.browser.tab_to("#risk").await;
        self.browser.press(&[SPACE]).await;
        self.follow(".decision button").await;
        self.browser.wait_for_text(words).await;
    }

    /// The actions about the key, the latest first, each with the beginning of its actor.
    async fn audit(&self) -> Vec<(String, String)> {
        let entries = audit(&self.world, self.key.trim_start_matches("/keys/")).await.into_iter();
        entries.map(|(action, actor, _)| (action, actor.split(" by ").next().unwrap().to_owned())).collect()
    }
}

fn entry(action: &str, person: &str) -> (String, String) {
    (action.to_owned(), format!("{person}@ops.example (signed in as {person}"))
}

#[tokio::test]
async fn a_person_of_the_provider_decides_about_an_unknown_key_and_the_audit_log_names_them() {
    let Some(fixture) = SignInFixture::start("").await else { return };
    fixture.sign_in("ann", &fixture.key, "Sign out ann@ops.example").await;
    assert_eq!(fixture.browser.url().await, format!("{}{}", fixture.page, fixture.key), "the page that they wanted");
    fixture.decide("not-executed", "Done. The key is").await;
    assert_eq!(states(&fixture.world).await, ["retryable"]);
    assert_eq!(fixture.audit().await, [entry("resolve", "ann")]);
}

#[tokio::test]
async fn a_reader_of_the_provider_only_looks_and_a_person_without_a_role_learns_why_they_cannot() {
    let Some(fixture) = SignInFixture::start("").await else { return };
    fixture.sign_in("carl", &fixture.key, "Sign out carl@ops.example").await;
    assert!(fixture.browser.text().await.contains("k-1"));
    fixture.decide("purge", "You may look and not change").await;
    fixture.sign_in("dora", &fixture.key, "Your account has no role here").await;
    let text = fixture.browser.text().await;
    assert!(text.contains("signed in as dora@ops.example. No value of its claim `groups` is in"), "{text}");
    fixture.open(&fixture.key).await;
    fixture.browser.wait_for_text("Sign in to the admin page").await;
    assert_eq!((states(&fixture.world).await, fixture.audit().await), (vec!["unknown".to_owned()], Vec::new()));
}

#[tokio::test]
async fn a_sign_in_works_across_and_after_a_rotation_of_the_providers_key() {
    let Some(mut fixture) = SignInFixture::start("").await else { return };
    let address = fixture.issuer.trim_start_matches("http://").parse().unwrap();
    let published = async || Client { address }.get("/jwks").send().await.text();
    fixture.sign_in("ann", "/", "Sign out ann@ops.example").await;
    let earlier = published().await;
    fixture.begin_sign_in("/").await;
    fixture.browser.wait_for_text("[ Cancel ]").await;
    fixture.provider.rotate_key().await;
    assert_ne!(published().await, earlier);
    fixture.log_in("bob").await;
    fixture.browser.wait_for_text("Sign out bob@ops.example").await;
    fixture.sign_in("ann", "/", "Sign out ann@ops.example").await;
}

#[tokio::test]
async fn while_the_provider_is_away_the_page_says_so_and_the_token_signs_people_in() {
    let Some(mut fixture) = SignInFixture::start("").await else { return };
    fixture.provider.process.kill().await.unwrap();
    fixture.world.crash_and_restart().await;
    fixture.begin_sign_in("/").await;
    fixture.browser.wait_for_text("The listener's token still signs you in").await;
    let (text, why) = (fixture.browser.text().await, format!("{} cannot be used: ", fixture.issuer));
    assert!(text.contains(&why) && text.contains("cannot be reached"), "{text}");
    fixture.open("/").await;
    fixture.browser.tab_to("#name").await;
    fixture.browser.type_text(&format!("carl{TAB}{TOKEN}{ENTER}")).await;
    fixture.browser.wait_for_text("Sign out carl").await;
    fixture.provider = Provider::start(&fixture.issuer, &fixture.page).await;
    let is_back = async || {
        fixture.open("/sign-in/oidc").await;
        fixture.browser.text().await.contains("[ Cancel ]").then_some(())
    };
    eventually(TEST_TIMEOUT, is_back).await;
    fixture.log_in("ann").await;
    fixture.browser.wait_for_text("Sign out ann@ops.example").await;
}

#[tokio::test]
async fn a_purge_takes_effect_when_another_person_of_the_provider_confirms_it() {
    let Some(fixture) = SignInFixture::start("four_eyes = [\"purge\"]").await else { return };
    fixture.sign_in("ann", &fixture.key, "Sign out ann@ops.example").await;
    fixture.decide("purge", "Nothing changes until another person confirms it here").await;
    // The same person is no other one after another sign-in.
    fixture.sign_in("ann", &fixture.key, "Proposed: purge by ann@ops.example").await;
    fixture.decide("purge", "another person must confirm it").await;
    assert_eq!(states(&fixture.world).await, ["unknown"]);
    fixture.sign_in("bob", &fixture.key, "Proposed: purge by ann@ops.example").await;
    fixture.decide("purge", "Done. The key is").await;
    assert_eq!(states(&fixture.world).await, [] as [String; 0]);
    assert_eq!(fixture.audit().await, [entry("purge", "bob"), entry("propose purge", "ann")]);
}
