use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

fn directive() -> Directive {
    Directive::parse("@idempotent(key)").unwrap()
}

fn value_in(request: &Json) -> PlaceValue {
    value_at(request.to_string().as_bytes(), &directive())
}

fn text(text: &str) -> PlaceValue {
    Ok(Some(text.as_bytes().to_vec()))
}

#[test]
fn a_directive_has_a_name_and_an_argument() {
    for spelled in ["@idempotent(key)", "@_(__a1)", "@A9(b)"] {
        assert_eq!(Directive::parse(spelled).unwrap().to_string(), spelled);
    }
    for (text, problem) in [
        ("", "is no argument of a directive"),
        ("idempotent(key)", "is no argument of a directive"),
        ("@idempotent", "is no argument of a directive"),
        ("@idempotent(key", "is no argument of a directive"),
        ("@idempotent(key) ", "is no argument of a directive"),
        ("@idempotent()", "has a name that GraphQL does not allow"),
        ("@(key)", "has a name that GraphQL does not allow"),
        ("@1a(key)", "has a name that GraphQL does not allow"),
        ("@a-b(key)", "has a name that GraphQL does not allow"),
        ("@a(key: 1)", "has a name that GraphQL does not allow"),
        ("@a((key))", "has a name that GraphQL does not allow"),
        ("@é(key)", "has a name that GraphQL does not allow"),
    ] {
        let found = Directive::parse(text).unwrap_err();
        assert!(found.starts_with(problem), "{text}: {found}");
    }
}

#[test]
fn an_argument_is_read_in_all_its_spellings() {
    for (document, value) in [
        // Shopify's place: the field of the mutation.
        ("mutation M { refundCreate(input: {a: 1}) @idempotent(key: \"k-1\") { id } }", text("k-1")),
        ("mutation M @idempotent(key: \"k-1\") { pay }", text("k-1")),
        ("{ a { b { c @idempotent(key: \"k-1\") } } }", text("k-1")),
        ("{ a { ... on T @idempotent(key: \"k-1\") { b } } }", text("k-1")),
        ("{ pay @ idempotent # (key: \"no\")\n ( other: 5, key\u{feff}:\t\"k-1\" ) }", text("k-1")),
        ("{ pay @idempotent(key: \"\\u006b-1\\n\\\"\") }", text("k-1\n\"")),
        ("{ pay @idempotent(key: \"\\uD83D\\uDE00\\u{1F600}\") }", text("😀😀")),
        ("{ pay @idempotent(key: \"\"\"k-1\"\"\") }", text("k-1")),
        ("{ pay @idempotent(key: \"\"\"\n  k\n   1 \\\"\"\"\n\"\"\") }", text("k\n 1 \"\"\"")),
        ("{ pay @idempotent(key: \"\") }", text("")),
        ("{ pay @idempotent(key: 17) }", text("17")),
        ("{ pay @idempotent(key: -17) }", text("-17")),
        ("{ pay @idempotent(key: 123456789012345678901234567890) }", text("123456789012345678901234567890")),
        // Fragments that the operation spreads, also by others, also by themselves.
        ("{ ...F } fragment F on T { pay @idempotent(key: \"k-1\") }", text("k-1")),
        ("{ ...F } fragment F on T @idempotent(key: \"k-1\") { pay }", text("k-1")),
        ("{ ...F @idempotent(key: \"k-1\") } fragment F on T { pay }", text("k-1")),
        ("{ ...F } fragment G on T { pay @idempotent(key: \"k-1\") ...F } fragment F on T { a { ...G } }", text("k-1")),
        ("{ a } fragment F on T { pay @idempotent(key: \"k-1\") }", Ok(None)),
        // Several of them.
        ("{ a @idempotent(key: \"k-1\") b @idempotent(key: \"\"\"k-1\"\"\") }", text("k-1")),
        ("{ a @idempotent(key: \"k-1\") b @idempotent(key: \"k-2\") }", Err(PlaceError::Several)),
        ("{ a @idempotent(key: \"k-1\", key: \"k-2\") }", Err(PlaceError::Several)),
        ("{ a @idempotent(key: \"k-1\") b @idempotent(other: 1) }", text("k-1")),
        // None of them.
        ("{ idempotent(key: \"k-1\") }", Ok(None)),
        ("{ pay(idempotent: \"@idempotent(key: 1)\") } # @idempotent(key: 2)", Ok(None)),
        ("{ pay @idempotent }", Ok(None)),
        ("{ pay @idempotent(keys: 1) @idempotence(key: 2) @Idempotent(key: 3) }", Ok(None)),
        ("{ pay @other(key: \"k-1\") }", Ok(None)),
        // A document without the name has no such directive, however it is to be read.
        ("{ pay", Ok(None)),
        ("", Ok(None)),
        // Values that are no key.
        ("{ pay @idempotent(key: 1.5) }", Err(PlaceError::NotScalar)),
        ("{ pay @idempotent(key: true) }", Err(PlaceError::NotScalar)),
        ("{ pay @idempotent(key: null) }", Err(PlaceError::NotScalar)),
        ("{ pay @idempotent(key: K) }", Err(PlaceError::NotScalar)),
        ("{ pay @idempotent(key: [\"k-1\"]) }", Err(PlaceError::NotScalar)),
        ("{ pay @idempotent(key: {k: \"k-1\"}) }", Err(PlaceError::NotScalar)),
    ] {
        assert_eq!(value_in(&json!({ "query": document })), value, "{document}");
    }
}

#[test]
fn the_operation_that_is_executed_counts() {
    let document = "mutation A { a @idempotent(key: 1) } mutation B { b @idempotent(key: 2) } mutation C { c }";
    for (name, value) in [
        (json!("A"), text("1")),
        (json!("B"), text("2")),
        (json!("C"), Ok(None)),
        (json!("D"), Err(NO_OPERATION)),
        (json!(""), Err(NO_OPERATION)),
        (json!(null), Err(NO_OPERATION)),
    ] {
        assert_eq!(value_in(&json!({ "query": document, "operationName": name })), value, "{name}");
    }
    let twice = "mutation A { a @idempotent(key: 1) } mutation A { a @idempotent(key: 1) }";
    assert_eq!(value_in(&json!({ "query": twice, "operationName": "A" })), Err(NO_OPERATION));
}

#[test]
fn a_variable_has_its_value_in_the_request_or_else_its_default() {
    let document = "mutation M($k: ID = \"d\", $other: Int) { pay @idempotent(key: $k) }";
    for (variables, value) in [
        (json!({ "k": "k-1" }), text("k-1")),
        (json!({ "k": "" }), text("")),
        (json!({ "k": 17 }), text("17")),
        (json!({ "k": 1.50 }), text("1.5")),
        (json!({}), text("d")),
        (json!(null), text("d")),
        (json!({ "k": null }), Err(PlaceError::NotScalar)),
        (json!({ "k": true }), Err(PlaceError::NotScalar)),
        (json!({ "k": ["k-1"] }), Err(PlaceError::NotScalar)),
        (json!("{\"k\":\"k-1\"}"), Err(AMBIGUOUS)),
        (json!([]), Err(AMBIGUOUS)),
    ] {
        assert_eq!(value_in(&json!({ "query": document, "variables": variables })), value, "{variables}");
    }
    assert_eq!(value_in(&json!({ "query": document })), text("d"));
    for (document, value) in [
        ("mutation M($k: ID) { pay @idempotent(key: $k) }", Ok(None)),
        ("mutation M($k: ID = \"d\") { ...F } fragment F on T { pay @idempotent(key: $k) }", text("d")),
        ("mutation M($k: ID = 5) { pay @idempotent(key: $k) }", text("5")),
        ("mutation M($k: ID = null) { pay @idempotent(key: $k) }", Err(PlaceError::NotScalar)),
        ("mutation M($k: ID = \"a\", $k: ID = \"a\") { pay @idempotent(key: $k) }", Err(PlaceError::Several)),
        ("mutation M($k: ID = \"a\") { a @idempotent(key: $k) b @idempotent(key: \"a\") }", text("a")),
        ("mutation M($k: ID = \"a\") { a @idempotent(key: $k) b @idempotent(key: \"b\") }", Err(PlaceError::Several)),
        ("mutation M($k: ID = \"a\", $l: ID) { a @idempotent(key: $l) b @idempotent(key: $k) }", text("a")),
    ] {
        assert_eq!(value_in(&json!({ "query": document })), value, "{document}");
    }
    // Exact digits, and a name with an escape.
    let body =
        |variables: &str| format!(r#"{{"query":"query($k:ID){{ a @idempotent(key: $k) }}","variables":{variables}}}"#);
    for (variables, value) in [
        (r#"{"k":12345678901234567890123}"#, text("1.2345678901234567890123e+22")),
        (r#"{"\u006b":"\u006b-1"}"#, text("k-1")),
        (r#"{"k":"a","k":"b"}"#, Err(AMBIGUOUS)),
        (r#"{"k":"a","\u006b":"b"}"#, Err(AMBIGUOUS)),
    ] {
        assert_eq!(value_at(body(variables).as_bytes(), &directive()), value, "{variables}");
    }
    // More variables than one client has keys.
    let uses = |count: usize| {
        let uses: String = (0..count).map(|number| format!("a @idempotent(key: $v{number}) ")).collect();
        let variables: Json =
            (0..count).map(|number| (format!("v{number}"), json!("k"))).collect::<serde_json::Map<_, _>>().into();
        value_in(&json!({ "query": format!("{{ {uses} }}"), "variables": variables }))
    };
    assert_eq!(uses(8), text("k"));
    assert_eq!(uses(9), Err(PlaceError::Several));
}

#[test]
fn a_request_that_programs_read_in_different_ways_is_unreadable() {
    let deep = format!("{}a @idempotent(key: 1){}", "{a".repeat(300), "}".repeat(300));
    let long = format!("{{ a @idempotent(key: 1) {} }}", "a ".repeat(TOKENS_MAX));
    for document in [
        "{ pay @idempotent(key: \"k-1\")",
        "{ pay @idempotent(key: \"k-1) }",
        "{ pay @idempotent(key: \"\\x\") }",
        "{ pay @idempotent(key: \"\\uD800\") }",
        "{ pay @idempotent(key: \"a\nb\") }",
        "{ pay @idempotent(key: ) }",
        "{ pay @idempotent(key) }",
        "{ a @idempotent(key: 1) b @idempotent(key: 2) c @idempotent(key) }",
        "{ pay @idempotent(key: $) }",
        "{ pay @idempotent(key: 01) }",
        "{ pay @idempotent() }",
        "{ pay @idempotent(key: \"k-1\") } type T { a: Int }",
        "{ pay @idempotent(key: \"k-1\") } { pay }",
        "{ ...F } fragment F on T { a @idempotent(key: 1) } fragment F on T { b }",
        "fragment F on T { a @idempotent(key: 1) }",
        "\"@idempotent(key: 1)\"",
        &deep,
        &long,
    ] {
        let request = json!({ "query": document });
        assert_eq!(value_in(&request), Err(NO_OPERATION), "{document:.80}");
        assert_eq!(cut(document, None, &[directive()]), None, "{document:.80}");
    }
    let document = "{ a @idempotent(key: 1) }";
    for (body, value) in [
        (format!(r#"{{"query":"{document}","query":"{{ b }}"}}"#), Err(AMBIGUOUS)),
        (format!(r#"{{"query":"{{ b }}","Query":"{document}"}}"#), Err(AMBIGUOUS)),
        (format!(r#"{{"query":["{document}"]}}"#), Err(AMBIGUOUS)),
        (format!(r#"{{"query":"{document}""#), Err(AMBIGUOUS)),
        (format!(r#"[{{"query":"{document}"}}]"#), Err(BATCH)),
        (format!(r#"[{{"query":"{{ b }}"}},{{"query":"{{ b }} {document}"}}]"#), Err(BATCH)),
        (r#"[{"query":"{ idempotent"}]"#.into(), Err(BATCH)),
        (r#"[{"query":"{ b }"},"#.into(), Err(BATCH)),
        (r#"[1]"#.into(), Err(BATCH)),
        (r#"[{"query":"{ idempotent }"},{"id":1},{}]"#.into(), Err(BATCH)),
        ("[]".into(), Ok(None)),
        (r#"{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"ab"}}}"#.into(), Err(NO_DOCUMENT)),
        (r#"{"query":null}"#.into(), Err(NO_DOCUMENT)),
        (r#"{"id":"idempotent"}"#.into(), Err(NO_DOCUMENT)),
        (format!("\"{document}\""), Err(NO_DOCUMENT)),
        (document.replace('{', "query"), Err(NO_DOCUMENT)),
        (format!(" \r\n{{\"query\":\"{document}\"}}"), text("1")),
    ] {
        assert_eq!(value_at(body.as_bytes(), &directive()), value, "{body}");
    }
    let batch = format!("[{}]", vec![r#"{"query":"{ idempotent }"}"#; TOKENS_MAX].join(","));
    assert_eq!(value_at(batch.as_bytes(), &directive()), Err(BATCH), "all documents together are too long");
}

#[test]
fn a_cut_document_has_all_but_the_arguments() {
    for (document, cut_document, variables) in [
        ("{ a @idempotent( key :\"k\" ) }", "{ a @idempotent( key :\"\" ) }", vec![]),
        ("{ a @idempotent(key: \"\"\"k\"\"\", b: \"c\") }", "{ a @idempotent(key: \"\"\"\"\"\", b: \"c\") }", vec![]),
        (
            "{ a @idempotent(key: 17) b(key: 18) @d(key: 19) }",
            "{ a @idempotent(key: 0) b(key: 18) @d(key: 19) }",
            vec![],
        ),
        ("{ é @idempotent(key: 1) }", "", vec![]),
        ("{ a(é: \"é\") @idempotent(key: \"é\") ...F } fragment F on T { b @idempotent(key: \"k\") }", "", vec![]),
        (
            "{ a(b: \"é\") @idempotent(key: \"é\") ...F } fragment F on T { b @idempotent(key: \"k\") }",
            "{ a(b: \"é\") @idempotent(key: \"\") ...F } fragment F on T { b @idempotent(key: \"\") }",
            vec![],
        ),
        // A fragment that is not spread does not count, and neither does its directive.
        (
            "{ a @idempotent(key: 1) } fragment F on T { b @idempotent(key: 2) }",
            "{ a @idempotent(key: 0) } fragment F on T { b @idempotent(key: 2) }",
            vec![],
        ),
        ("query($k: ID) { a @idempotent(key: $k) }", "query($k: ID) { a @idempotent(key: $k) }", vec!["/variables/k"]),
        (
            "query($l: ID = \"d\", $k: ID = 5, $b: Int = 6) { a(b: $b) @idempotent(key: $k) c @idempotent(key: $l) }",
            "query($l: ID = \"\", $k: ID = 0, $b: Int = 6) { a(b: $b) @idempotent(key: $k) c @idempotent(key: $l) }",
            vec!["/variables/k", "/variables/l"],
        ),
        // A variable that is used elsewhere too counts.
        ("query($k: ID = 5) { a(b: $k) @idempotent(key: $k) }", "", vec![]),
        ("query($k: ID) { a @idempotent(key: $k, b: [{c: $k}]) }", "", vec![]),
        ("query($k: ID) { a @idempotent(key: $k) ...F } fragment F on T { b @include(if: $k) }", "", vec![]),
        (
            "query($k: ID) { a @idempotent(key: $k) } fragment F on T { b @include(if: $k) }",
            "query($k: ID) { a @idempotent(key: $k) } fragment F on T { b @include(if: $k) }",
            vec!["/variables/k"],
        ),
        (
            "query($k: ID) { a(b: $k) @idempotent(key: $k) c @idempotent(key: 1) }",
            "query($k: ID) { a(b: $k) @idempotent(key: $k) c @idempotent(key: 0) }",
            vec![],
        ),
        // No key.
        ("{ a @idempotent(key: true) }", "", vec![]),
        ("{ a @idempotent(b: 1) }", "", vec![]),
        ("{ idempotent }", "", vec![]),
        ("{ a }", "", vec![]),
    ] {
        let variables: Vec<_> = variables.into_iter().map(|text| Pointer::parse(text).unwrap()).collect();
        let expected = (!cut_document.is_empty()).then(|| CutDocument { document: cut_document.to_owned(), variables });
        assert_eq!(cut(document, None, &[directive()]), expected, "{document}");
    }
    let document = "mutation A { a @idempotent(key: 1) @c(d: 2) } mutation B { b @idempotent(key: 3) }";
    let directives = [directive(), Directive::parse("@c(d)").unwrap(), directive()];
    let expected = "mutation A { a @idempotent(key: 0) @c(d: 0) } mutation B { b @idempotent(key: 3) }";
    assert_eq!(cut(document, Some("A"), &directives).unwrap().document, expected);
    assert_eq!(cut(document, None, &directives), None);
    assert_eq!(cut(document, Some("A"), &[]), None);
}

proptest! {
    /// A key is its literal's value, and nothing but the key is cut.
    #[test]
    fn a_key_is_cut_and_all_else_stays(key in "\\PC{0,20}", other in "\\PC{0,20}", argument in "\\PC{0,20}") {
        let literal = |text: &str| serde_json::to_string(text).unwrap();
        let document = |key: &str, argument: &str| {
            format!("mutation {{ pay(note: {}) @idempotent(key: {}) {{ id }} }}", literal(argument), literal(key))
        };
        let cut_of = |key: &str, argument: &str| cut(&document(key, argument), None, &[directive()]).unwrap();
        prop_assert_eq!(value_in(&json!({ "query": document(&key, &argument) })), text(&key));
        prop_assert_eq!(cut_of(&key, &argument).document, document("", &argument));
        prop_assert_eq!(cut_of(&key, &argument) == cut_of(&other, &key), argument == key);
    }
}
