//! Messages about wrong values, names and syntaxes.

use super::*;

#[test]
fn tables_written_as_something_else_are_told_how() {
    one_problem("[routes]\nname = 'a'", "2:1: routes: must be written as `[[…]]`");
    one_problem("routes = ['a']", "2:11: routes[0]: must be a table, like `{ name = \"…\" }`; this is a text");
    one_problem(
        "store = 'sqlite:x'",
        "2:9: store: must be a table, like `{ url = \"sqlite:oncegate.db\" }`; this is a text",
    );
    one_problem(
        &route("key = 'x'"),
        "5:7: routes[0].key: must be a table, like `{ from = \"header:Idempotency-Key\" }`; this is a text",
    );
    one_problem("[[defaults]]\nttl = '1h'", "2:1: defaults: must be a table, like");
}

#[test]
fn a_name_of_another_program_is_told_ours() {
    one_problem(&route("timeout = '5s'"), "5:1: routes[0].timeout: unknown key; did you mean `upstream_timeout`?");
    one_problem("port = 80", "2:1: port: unknown key; did you mean `listen`?");
}

#[test]
fn a_name_for_including_another_file_is_told_ours() {
    for name in ["import", "imports", "extends"] {
        let line = format!("{name} = ['other.toml']");
        let problem = format!("{name}: unknown key; further files are named by `include` at the top of the file");
        one_problem(&line, &format!("2:1: {problem}"));
        one_problem(
            &format!(
                "[defaults]
{line}"
            ),
            &format!("3:1: defaults.{problem}"),
        );
        one_problem(&route(&line), &format!("5:1: routes[0].{problem}"));
    }
    one_problem(
        &route("fingerprint.includes = ['/a']"),
        "5:13: routes[0].fingerprint.includes: unknown key; did you mean `include`?",
    );
}

#[test]
fn a_file_in_another_syntax_is_told_so() {
    let problems_of_file = |text: &str| load_in(FakeEnvironment::default(), text).expect_err(text).to_string();
    for (text, hint) in [
        ("upstream = \u{201c}http://127.0.0.1:3000\u{201d}\n", "the line has typographic quotes"),
        ("upstream: http://127.0.0.1:3000\n", "this looks like YAML"),
        ("routes:\n  - name: pay\n", "this looks like YAML"),
        ("---\nupstream: x\n", "this looks like YAML"),
        ("{ \"upstream\": \"http://a\" }\n", "this looks like JSON"),
    ] {
        let problems = problems_of_file(text);
        assert!(problems.contains(hint), "{text}: {problems}");
    }
    let plain = problems_of_file("upstream = http://a\n");
    assert!(!plain.contains("looks like"), "{plain}");
}
