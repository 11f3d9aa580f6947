//! Relative paths: those in the file belong to the file's folder, and those of flags, variables and defaults to the
//! working directory.

use std::path::Path;

use super::*;

fn load_of(lines: &str, environment: FakeEnvironment) -> Result<LoadedConfig, ConfigProblems> {
    let environment = environment.with_file("conf/oncegate.toml", &format!("{UPSTREAM}{lines}"));
    load(Some(Path::new("conf/oncegate.toml")), &Overrides::default(), &environment)
}

#[test]
fn a_relative_path_in_the_file_belongs_to_the_file_s_folder_and_problems_show_it_whole() {
    const JWT: &str = "jwt = { issuer = 'i', audience = ['a'], jwks";
    const KAFKA: &str = "kafka = { brokers = ['b'], tls = true";
    const ROUTE: &str = "[[routes]]\nname = 'a'\npath = '/a'\n";
    let consumer = |file: &str| {
        let topics = "topics = ['t'], group = 'g', dead_letter_topic = 'd'";
        format!("{ROUTE}[[consumers]]\nroute = 'a'\n{KAFKA}, {topics}, {file} }}")
    };
    for lines in [
        "tls = { certificate = 'x', key = '/y' }",
        "tls = { certificate = '/y', key = 'x' }",
        "tls = { certificate = '/y', key = '/y', client_ca = 'x' }",
        "upstream_tls.ca = 'x'",
        "upstream_tls = { certificate = 'x', key = '/y' }",
        "[defaults]\nupstream_tls.ca = 'x'",
        &format!("{ROUTE}upstream_tls.ca = 'x'"),
        &format!("{JWT} = 'x' }}"),
        &consumer("ca = 'x'"),
        &consumer("certificate = 'x', key = '/y'"),
        &format!("{ROUTE}[[events]]\nname = 'n'\nroutes = ['a']\n{KAFKA}, topic = 't', ca = 'x' }}"),
        "secret = '${file:x}'",
        "previous_secrets = ['${file:x}']",
        "admin.token = '${file:x}'",
        "store.url = 'postgres://u:${file:x}@127.0.0.1/d'",
        &format!("{ROUTE}reconcile.url = 'http://a/{{id}}?key=${{file:x}}'"),
    ] {
        let environment = FakeEnvironment::default().with_file("/y", "").with_file("x", "of the working directory");
        let problems = load_of(lines, environment).expect_err(lines).to_string();
        let whole = show_whole_path(Path::new("conf/x"));
        let said = [format!("`{whole}` cannot be read"), format!("`${{file:{whole}}}` cannot be read")];
        assert!(said.iter().any(|said| problems.contains(said)), "{lines}: {problems}");
    }
    let config = |lines: &str| {
        load_of(lines, FakeEnvironment::default().with_file("conf/x", "of the folder")).expect(lines).start
    };
    assert_eq!(config("store.url = 'sqlite:x'").store.url, StoreLocation::Sqlite("conf/x".into()));
    assert_eq!(config("admin.token_file = 'x'").admin.token_file.as_deref(), Some(Path::new("conf/x")));
    let client = FakeEnvironment::default().with_file("conf/token", "0123456789abcdef");
    let client = client.with_file("conf/oncegate.toml", "admin.token_file = 'token'");
    let token = admin_token(Some(Path::new("conf/oncegate.toml")), &client).expect("it can be read");
    assert!(token.is_some_and(|token| token.matches(b"0123456789abcdef")), "a client reads the same file");
    let url = PostgresUrl::parse("postgres://u@h/d?sslrootcert=x&sslcert=y&sslkey=/k").expect("it is right");
    let url = url.with_files_in(Path::new("conf"));
    assert_eq!(url.tls().files().collect::<Vec<_>>(), ["conf/y", "/k", "conf/x"].map(Path::new));
}

#[test]
fn a_relative_path_of_a_variable_or_of_a_default_belongs_to_the_working_directory() {
    let variable = FakeEnvironment::default().with_variable("ONCEGATE_STORE_URL", "sqlite:x");
    for (lines, environment, expected) in [("", variable, "x"), ("", FakeEnvironment::default(), "oncegate.db")] {
        let url = load_of(lines, environment).expect("it loads").start.store.url;
        assert_eq!(url, StoreLocation::Sqlite(expected.into()));
    }
}

#[test]
fn files_of_a_text_are_placed_and_nothing_else_of_it_is() {
    for (text, placed) in [
        ("${file:x}", "${file:/conf/x}"),
        ("a ${file:x} b ${file:y/z}${file:/w}", "a ${file:/conf/x} b ${file:/conf/y/z}${file:/w}"),
        ("$${file:x}", "$${file:x}"),
        ("${X:-file:x} file:x {file:x}", "${X:-file:x} file:x {file:x}"),
        ("${file:x", "${file:x"),
        ("", ""),
    ] {
        assert_eq!(interpolate::place_files(text, Path::new("/conf")), placed, "{text}");
    }
}
