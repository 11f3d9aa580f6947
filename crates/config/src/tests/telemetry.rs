//! OpenTelemetry's own variables.

use super::*;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const RESOURCE: &str = "OTEL_RESOURCE_ATTRIBUTES";
const COLLECTOR: (&str, &str) = (ENDPOINT, "http://c:4318");

fn environment(variables: &[(&str, &str)]) -> FakeEnvironment {
    variables.iter().fold(FakeEnvironment::default(), |all, (name, value)| all.with_variable(name, value))
}

fn load_with(variables: &[(&str, &str)], file: &str) -> LoadedConfig {
    let loaded = load_in(environment(variables), &format!("{UPSTREAM}{file}"));
    loaded.unwrap_or_else(|problems| panic!("{variables:?}: {problems}"))
}

fn collector(variables: &[(&str, &str)], file: &str) -> Option<OtlpCollector> {
    load_with(variables, file).start.telemetry.otlp
}

/// The warnings about these variables.
fn ignored(variables: &[(&str, &str)]) -> Vec<String> {
    let mut warnings = load_with(variables, "").live.warnings;
    warnings.retain(|warning| warning.ends_with("[otel-variable]"));
    warnings
}

#[test]
fn an_endpoint_has_the_path_that_the_specification_gives_it() {
    for (variables, expected) in [
        (&[(ENDPOINT, "http://c:4318")][..], "http://c:4318 /v1/traces"),
        (&[(ENDPOINT, "http://c:4318/")], "http://c:4318 /v1/traces"),
        (&[(ENDPOINT, "https://c/otlp")], "https://c /otlp/v1/traces"),
        (&[(ENDPOINT, "https://c/otlp/")], "https://c /otlp/v1/traces"),
        (&[(TRACES_ENDPOINT, "http://c:4318")], "http://c:4318 /"),
        (&[(TRACES_ENDPOINT, "http://c/my/traces/")], "http://c /my/traces/"),
        (&[(ENDPOINT, "http://all"), (TRACES_ENDPOINT, "http://t/x")], "http://t /x"),
        (&[(ENDPOINT, "http://c:4317"), (PROTOCOL, "grpc")], "http://c:4317 gRPC"),
        (&[(TRACES_ENDPOINT, "https://c/"), (PROTOCOL, "grpc")], "https://c gRPC"),
        (
            &[(ENDPOINT, "http://c"), (PROTOCOL, "http/json"), ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")],
            "http://c gRPC",
        ),
        (&[(ENDPOINT, "http://c"), (PROTOCOL, "http/protobuf")], "http://c /v1/traces"),
    ] {
        // The variable wins over the file.
        for file in ["", "[telemetry]\notlp = 'http://file/x'"] {
            let found = collector(variables, file).expect("there is an endpoint");
            let path = found.path.as_ref().map_or("gRPC", |path| path.as_str());
            assert_eq!(format!("{} {path}", found.upstream), expected, "{variables:?} {file}");
        }
    }
}

#[test]
fn nothing_is_exported_without_an_endpoint_or_with_the_sdk_disabled() {
    let file = "[telemetry]\notlp = 'http://file:4317'";
    assert_eq!(collector(&[], ""), None);
    // For other programs.
    assert_eq!(collector(&[(PROTOCOL, "http/json"), (HEADERS, "?"), (RESOURCE, "?")], ""), None);
    assert_eq!(collector(&[(ENDPOINT, "")], ""), None);
    assert_eq!(collector(&[("OTEL_TRACES_EXPORTER", "none")], file), None);
    let of_file = collector(&[(HEADERS, "api-key=of-another-endpoint")], file).unwrap();
    assert!(of_file.fields.is_empty(), "a credential of another collector");
    for (disabled, is_exported) in [("true", false), ("TRUE", false), ("false", true), ("1", true)] {
        let disabled = ("OTEL_SDK_DISABLED", disabled);
        assert_eq!(collector(&[disabled], file).is_some(), is_exported, "{disabled:?}");
        assert_eq!(collector(&[disabled, COLLECTOR], "").is_some(), is_exported, "{disabled:?}");
    }
}

#[test]
fn fields_and_attributes_are_decoded() {
    for (text, expected) in [
        ("api-key=k1", &[("api-key", "k1")][..]),
        (" a = b , c = d ,", &[("a", "b"), ("c", "d")]),
        ("a=b=c", &[("a", "b=c")]),
        ("a=", &[("a", "")]),
        ("authorization=Basic%20dTpw%3D%3D", &[("authorization", "Basic dTpw==")]),
        ("a=%2C%25", &[("a", ",%")]),
        ("A=1,a=2", &[("a", "2")]),
    ] {
        let found = collector(&[COLLECTOR, (HEADERS, text)], "").unwrap().fields;
        let fields: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(fields, expected, "{text}");
    }
    let found = |variables: &[(&str, &str)]| {
        let resource = collector(&[&[COLLECTOR], variables].concat(), "").unwrap().resource;
        resource.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(found(&[(RESOURCE, "a%2Cb=c%3Dd, team=pay")]), "a,b=c=d team=pay");
    assert_eq!(
        found(&[(RESOURCE, "service.name=one,x=y"), ("OTEL_SERVICE_NAME", "two, too")]),
        "x=y service.name=two, too"
    );
}

#[test]
fn a_wrong_variable_is_ignored_with_a_warning_that_does_not_show_its_value() {
    let wrong = "sEcReT";
    for (variable, value, message) in [
        (ENDPOINT, "sEcReT:4318", "is no URL: write `http://collector:4317`"),
        (ENDPOINT, "http://c/?sEcReT", "has a query"),
        (ENDPOINT, "http://u:sEcReT@c", "has a user name or password"),
        (TRACES_ENDPOINT, "unix:/sEcReT", "is no URL"),
        (PROTOCOL, "http/json", "is no protocol that is known here: write `http/protobuf` or `grpc`"),
        (PROTOCOL, "sEcReT", "is no protocol"),
        (HEADERS, "sEcReT", "has a part that is no `name=value`"),
        (HEADERS, "=sEcReT", "has a part that is no `name=value`"),
        (HEADERS, "a=%sEcReT", "has a `%` that is not followed by two hexadecimal digits"),
        (HEADERS, "a=%ffsEcReT", "has percent-encoded bytes that are no UTF-8"),
        (HEADERS, "a=%0AsEcReT", "has a value that cannot be in a header field"),
        (HEADERS, "a b=sEcReT", "has a name that is none of a header field"),
        (HEADERS, "Content-Length=sEcReT", "has a name that is none of a header field, or is of one"),
        (HEADERS, "host=sEcReT", "has a name that is none of a header field, or is of one"),
        (RESOURCE, "team=pay,sEcReT", "has a part that is no `name=value`"),
        ("OTEL_TRACES_SAMPLER", "xray_sEcReT", "is no sampler that is known here"),
    ] {
        let variables = [(variable, value), COLLECTOR];
        let variables = if matches!(variable, ENDPOINT | TRACES_ENDPOINT) { &variables[..1] } else { &variables[..] };
        let warnings = ignored(variables);
        let begins = format!("{variable} is ignored: it {message}");
        assert!(warnings.len() == 1 && warnings[0].starts_with(&begins), "{value}\n  {begins}\n  {warnings:#?}");
        assert!(!warnings[0].contains(wrong), "{warnings:?}");
    }
    assert_eq!(
        ignored(&[(ENDPOINT, "http://c/sEcReT"), (PROTOCOL, "grpc")]),
        [format!("{ENDPOINT} is ignored: it has a path, and OTLP over gRPC has none: leave it out [otel-variable]")]
    );
    // The file's collector is asked then, without the fields that were for another one.
    let beside = [(ENDPOINT, "unix:/c"), (HEADERS, "api-key=sEcReT")];
    let of_file = collector(&beside, "[telemetry]\notlp = 'http://file:4318/v1/traces'").unwrap();
    assert!(of_file.fields.is_empty());
    for ratio in ["sEcReT", "1.1", "-0.1", "NaN"] {
        let variables = [COLLECTOR, ("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", ratio)];
        let warning = "OTEL_TRACES_SAMPLER_ARG is ignored: it is no ratio: write a number from 0 to 1 [otel-variable]";
        assert_eq!(ignored(&variables), [warning], "{ratio}");
    }
}

#[test]
fn the_report_says_what_is_in_force_and_conceals_the_values_of_fields() {
    let described = |variables: &[(&str, &str)], file: &str| {
        let config = load_with(variables, file);
        let report = describe(&config);
        assert!(!format!("{config:?}{report}").contains("hunter2"), "{report}");
        let line = report.lines().find_map(|line| line.strip_prefix("traces          "));
        line.map(str::to_owned)
    };
    assert_eq!(described(&[], ""), None);
    let file = "[telemetry]\notlp = 'https://file:4317'";
    assert_eq!(described(&[], file).as_deref(), Some("to https://file:4317/… by grpc, ratio 1 of new traces"));
    let variables = [
        (ENDPOINT, "http://c:4318/hunter2"),
        (HEADERS, "api-key=hunter2,x-tenant=hunter2"),
        (RESOURCE, "team%0A=hunter2"),
        ("OTEL_SERVICE_NAME", "gate"),
        ("OTEL_TRACES_SAMPLER", "traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.07"),
    ];
    let expected = "to http://c:4318/… by http/protobuf, ratio 0.07 of all traces, field api-key, field x-tenant, \
                    attribute team\\n, attribute service.name";
    assert_eq!(described(&variables, file).as_deref(), Some(expected));
}
