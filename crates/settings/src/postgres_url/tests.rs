use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, LoadBalanceHosts, SslNegotiation};

use super::super::postgres_parameters::{LIBPQ_PARAMETERS, ParameterRule};
use super::super::postgres_tls::{Identity, Roots, SslMode};
use super::*;

fn url(text: &str) -> PostgresUrl {
    PostgresUrl::parse(text).unwrap_or_else(|message| panic!("{text}: {message}"))
}

#[test]
fn a_server_that_is_not_this_machine_is_verified_unless_the_url_says_otherwise() {
    use SslMode::{Disable, Prefer, Require, VerifyCa, VerifyFull};
    for (text, expected) in [
        ("postgres://u@127.0.0.1/d", Prefer),
        ("postgres://u@localhost:5433/d", Prefer),
        ("postgres://u:p%40@[::1]:5432/d", Prefer),
        ("postgres:///d?host=/run/postgresql", Disable),
        ("postgres://%2Frun%2Fpostgresql/d?sslmode=verify-full", Disable),
        ("postgres://%2Frun%2Fpostgresql,localhost/d", Prefer),
        ("postgres://u@db.example/d?hostaddr=127.0.0.1", Prefer),
        ("postgres://u@db.example/d", VerifyFull),
        ("postgres://u@localhost,db.example/d", VerifyFull),
        ("postgres://u@localhost/d?host=db.example&port=5432", VerifyFull),
        ("postgres://u@localhost/d?hostaddr=10.0.0.1", VerifyFull),
        ("postgres://u@127.0.0.1.example/d", VerifyFull),
        ("postgres://u@localhost/d?sslrootcert=system", VerifyFull),
        ("postgres://u@localhost/d?sslrootcert=ca.pem", VerifyFull),
        ("postgres://u@db/d?sslmode=disable", Disable),
        ("postgres://u@db/d?sslmode=require", Require),
        ("postgres://u@db/d?sslmode=require&sslrootcert=ca.pem", VerifyCa),
        ("postgres://u@db/d?sslmode=verify-ca&sslrootcert=ca.pem", VerifyCa),
        ("postgres://u@db/d?sslmode=verify-full", VerifyFull),
    ] {
        assert_eq!(url(text).tls().mode, expected, "{text}");
    }
}

#[test]
fn each_parameter_that_is_taken_has_its_effect() {
    let text = "postgres://u:p%2F@a:6000/d?hostaddr=10.0.0.1&options=-cx%3D1&application_name=n&connect_timeout=3\
                &tcp_user_timeout=4000&keepalives=0&keepalives_idle=5&keepalives_interval=6&keepalives_count=7\
                &channel_binding=require&load_balance_hosts=random&sslnegotiation=direct&sslmode=verify-full\
                &sslrootcert=%2Fca.pem&sslcert=c.pem&sslkey=k.pem";
    let mut expected = Config::new();
    let seconds = Duration::from_secs;
    expected.user("u").password("p/").dbname("d").host("a").hostaddr([10, 0, 0, 1].into()).port(6000);
    expected.options("-cx=1").application_name("n").connect_timeout(seconds(3)).tcp_user_timeout(seconds(4));
    expected.keepalives(false).keepalives_idle(seconds(5)).keepalives_interval(seconds(6)).keepalives_retries(7);
    expected.channel_binding(ChannelBinding::Require).load_balance_hosts(LoadBalanceHosts::Random);
    expected.ssl_negotiation(SslNegotiation::Direct);
    let read = url(text);
    assert!(read.hosts() == [expected], "{:?}", read.hosts());
    assert_eq!(read.tls().roots, Roots::File("/ca.pem".into()));
    assert_eq!(read.tls().identity, Some(Identity { certificate: "c.pem".into(), key: "k.pem".into() }));
    let by_name = url("postgres:///?user=u&password=p%2F&dbname=d&host=a&port=6000&fallback_application_name=f");
    let mut expected = Config::new();
    expected.user("u").password("p/").dbname("d").host("a").port(6000).application_name("f");
    assert!(by_name.hosts() == [expected], "{:?}", by_name.hosts());
    assert!(url("postgres://h?connect_timeout=0").hosts()[0].get_connect_timeout().is_none());
}

#[test]
fn hosts_addresses_and_ports_belong_together() {
    let each = |text: &str| url(text).hosts().iter().map(|host| format!("{host:?}")).collect::<Vec<_>>();
    let ones = |texts: [&str; 2]| texts.map(|text| each(text).remove(0)).to_vec();
    assert_eq!(each("postgres://u@a:1,b:2/d"), ones(["postgres://u@a:1/d", "postgres://u@b:2/d"]));
    assert_eq!(
        each("postgres:///?host=a,b&hostaddr=10.0.0.1,10.0.0.2&port=7"),
        ones(["postgres://a:7?hostaddr=10.0.0.1", "postgres://b:7?hostaddr=10.0.0.2"])
    );
    for (uneven, why) in [
        ("postgres:///?host=a,b&hostaddr=10.0.0.1", "hostaddr"),
        ("postgres:///?host=a,b,c&port=1,2", "ports"),
        ("postgres:///?user=u", "neither a host"),
        ("postgres://u@a,,b/d", "an empty host"),
    ] {
        let message = PostgresUrl::parse(uneven).expect_err(uneven);
        assert!(message.contains(why), "{uneven}: {message}");
    }
}

/// A value of each parameter that says the most with the least.
fn value_of(name: &str) -> &'static str {
    match name {
        "channel_binding" | "gssencmode" | "load_balance_hosts" => "disable",
        "hostaddr" => "127.0.0.1",
        "min_protocol_version" => "3.0",
        "replication" | "gssdelegation" | "requiressl" => "0",
        "ssl_max_protocol_version" => "TLSv1.3",
        "ssl_min_protocol_version" => "TLSv1.2",
        "sslcertmode" => "allow",
        "sslmode" => "verify-full",
        "sslnegotiation" => "direct",
        "sslrootcert" => "system",
        "target_session_attrs" => "read-write",
        "sslcert" => "c&sslkey=k",
        "sslkey" => "k&sslcert=c",
        _ => "1",
    }
}

/// Each parameter once, in alphabetical order.
fn libpq_parameters() -> Vec<(&'static str, ParameterRule)> {
    let rows = LIBPQ_PARAMETERS.iter().flat_map(|(names, rule)| names.iter().map(|name| (*name, *rule)));
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|(name, _)| *name);
    assert!(rows.is_sorted_by(|(one, _), (next, _)| one < next), "a parameter has two rules");
    rows
}

#[test]
fn each_of_libpqs_parameters_has_a_verdict() {
    for (name, rule) in libpq_parameters() {
        let read = |value: &str| PostgresUrl::parse(&format!("postgres://u@h/d?{name}={value}"));
        let read = if matches!(name, "host" | "port") {
            PostgresUrl::parse(&format!("postgres:///d?host=1&{name}=1"))
        } else {
            read(value_of(name))
        };
        let refusal = read.err();
        match rule {
            ParameterRule::Taken if name == "host" => assert_eq!(refusal.as_deref(), None, "{name}"),
            ParameterRule::Taken | ParameterRule::Ignored(..) => assert_eq!(refusal, None, "{name}"),
            ParameterRule::Refused(advice) => assert!(refusal.unwrap().ends_with(advice), "{name}"),
        }
        if let ParameterRule::Ignored([_, ..], why) = rule {
            let message = PostgresUrl::parse(&format!("postgres://h?{name}=hunter2")).expect_err(name);
            assert!(message.contains(why) && message.contains(name) && !message.contains("hunter2"), "{message}");
        }
    }
}

#[test]
fn the_documented_table_has_the_verdicts() {
    let verdict = |rule| match rule {
        ParameterRule::Taken => "taken".to_owned(),
        ParameterRule::Ignored([], why) => format!("each value ignored: {why}"),
        ParameterRule::Ignored(values, why) => format!("`{}` ignored: {why}", values.join("`, `")),
        ParameterRule::Refused(advice) => format!("refused: {advice}"),
    };
    let mut names = std::collections::BTreeMap::<String, Vec<&str>>::new();
    for (name, rule) in libpq_parameters() {
        names.entry(verdict(rule)).or_default().push(name);
    }
    let expected = names.into_iter().map(|(rule, names)| format!("| `{}` | {rule} |", names.join("`, `")));
    let documented = include_str!("../../../../docs/configuration.md").split("| parameter of libpq |").nth(1).unwrap();
    let documented: Vec<_> = documented.lines().skip(2).take_while(|line| line.starts_with("| ")).collect();
    assert_eq!(documented, expected.collect::<Vec<_>>(), "docs/configuration.md, in the section about the URL");
}

#[test]
fn parameters_of_other_programs_get_advice() {
    for (parameter, owner, instead) in [
        ("pgbouncer=true", "Prisma", "leave it out"),
        ("connection_limit=5", "Prisma", "`max_connections`"),
        ("schema=public", "Prisma", "`oncegate`"),
        ("statement_cache_size=0", "Prisma", "leave it out"),
        ("pool_timeout=10", "Prisma", "`timeout`"),
        ("sslaccept=strict", "Prisma", "`sslmode=verify-full`"),
        ("ssl=true", "node-postgres", "`sslmode=verify-full`"),
        ("sslmode=no-verify", "node-postgres", "`sslmode=require`"),
        ("prepareThreshold=0", "JDBC", "leave it out"),
        ("prepared_statement_cache_size=0", "SQLAlchemy", "leave it out"),
        ("pool_max_conns=3", "pgx", "`max_connections`"),
    ] {
        let message = PostgresUrl::parse(&format!("postgres://u:hunter2@h/d?{parameter}")).expect_err(parameter);
        assert!(message.contains(owner) && message.contains(instead), "{parameter}: {message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn a_problem_shows_nothing_of_the_url_and_hints_at_the_encoding() {
    for (text, why) in [
        ("postgres://oncegate:Sup3r@hunter2@host/db", "%40"),
        ("postgres://u:hun/hunter2@h/d", "%2F"),
        ("postgres://u:hun?hunter2@h/d", "%3F"),
        ("postgres://u:hun#hunter2@h/d", "%23"),
        ("postgres://u:12/hunter2@h/d", "%2F"),
        ("postgres://u:12?hunter2@h/d", "%3F"),
        ("postgres://u:12#hunter2@h/d", "%23"),
        ("postgres://u:hunter2/d", "%3A"),
        ("postgres://u:12:hunter2/d", "%3A"),
        ("postgres://u:12/hunter2/d", "%2F"),
        ("postgres://h?password=hun@hunter2", "%40"),
        ("postgres://u:hunter2%@h/d", "%25"),
        ("postgres://u:hunter2@h/d?hunter2=1", "libpq does not have"),
        ("postgres://u:hunter2@h/d?hunter2", "libpq does not have"),
        ("postgres://u:hunter2@h/d?password=", "an empty `password`"),
        ("postgres://u:hunter2@h:x/d", "port"),
        ("postgres://u:hunter2@h:0/d", "port"),
        ("postgres://u:hunter2@[::1/d", "`[`"),
        ("postgres://u:hunter2@/d", "neither a host"),
        ("postgres://u:hunter 2@h/d", "white space"),
        ("postgres://u:hunter2@h/d\n", "white space"),
        ("postgres://u:p@db/d?sslmode=hunter2", "an unknown `sslmode`"),
        ("postgres://u:p@db/d?channel_binding=hunter2", "`channel_binding`"),
        ("postgres://u:p@db/d?connect_timeout=hunter2", "`connect_timeout`"),
        ("postgres://u:hunter2@db/d?sslmode=prefer", "write `sslmode=verify-full`"),
        ("postgres://u:hunter2@db/d?sslmode=allow", "`verify-ca` or `verify-full`"),
        ("postgres://u:hunter2@db/d?sslmode=verify-ca", "without an `sslrootcert`"),
        ("postgres://u:hunter2@db/d?sslmode=require&sslrootcert=system", "does not verify names"),
        ("postgres://u:hunter2@db/d?sslcert=c.pem", "without an `sslkey`"),
        ("postgres://u:hunter2@db/d?sslkey=k.pem", "without an `sslcert`"),
        ("postgres://u:hunter2@db/d?sslmode=", "an empty `sslmode`"),
    ] {
        let message = PostgresUrl::parse(text).expect_err(text);
        assert!(message.contains(why), "{text}: {message}");
        assert!(!message.contains("hunter"), "{text}: {message}");
    }
}

#[test]
fn only_hosts_ports_and_the_database_are_shown() {
    for (text, shown) in [
        ("postgres://u:hunter2@h:5433/d?sslmode=verify-full", "postgres://h:5433/d"),
        ("postgresql://u@h/d", "postgres://h:5432/d"),
        ("postgres://u:hunter2@a,[::1]:7/d", "postgres://a:5432,[::1]:7/d"),
        ("postgres://h/d?user=hunter2&password=hunter2", "postgres://h:5432/d"),
        ("postgres://h?password=hunter2&options=hunter2", "postgres://h:5432"),
        ("postgres://u:hunter2:hunter2@h/d", "postgres://h:5432/d"),
        ("postgres:///d?host=/run/pg&user=hunter2", "postgres://%2Frun%2Fpg:5432/d"),
        ("postgres:///d?hostaddr=10.0.0.1&user=hunter2", "postgres://10.0.0.1:5432/d"),
    ] {
        let url = url(text);
        assert_eq!((url.to_string(), format!("{url:?}")), (shown.into(), shown.into()));
    }
}

#[test]
fn a_changed_password_leads_to_the_same_place() {
    let base = url("postgres://u:a@h/d?sslmode=require");
    for (other, is_same) in [
        ("postgres://u:b@h/d?sslmode=require", true),
        ("postgres://u@h/d?sslmode=require", true),
        ("postgres://v:a@h/d?sslmode=require", false),
        ("postgres://u:a@i/d?sslmode=require", false),
        ("postgres://u:a@h:1/d?sslmode=require", false),
        ("postgres://u:a@h/e?sslmode=require", false),
        ("postgres://u:a@h/d?sslmode=disable", false),
        ("postgres://u:a@h/d?sslmode=require&options=-cx", false),
    ] {
        assert_eq!(base.differs_in_password_alone(&url(other)), is_same, "{other}");
    }
}
