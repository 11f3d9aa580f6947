//! The default meaning of statuses, and the rules about bodies.

use http::StatusCode;

use super::{config, problems, route};
use crate::describe;
use oncegate_domain::response_policy::ResponseVerdict;

/// The final statuses of IANA's registry of HTTP status codes (https://www.iana.org/assignments/http-status-codes).
#[rustfmt::skip]
const REGISTERED: [(u16, &str); 59] = [
    (200, "OK"), (201, "Created"), (202, "Accepted"), (203, "Non-Authoritative Information"), (204, "No Content"),
    (205, "Reset Content"), (206, "Partial Content"), (207, "Multi-Status"), (208, "Already Reported"), (226, "IM Used"),
    (300, "Multiple Choices"), (301, "Moved Permanently"), (302, "Found"), (303, "See Other"), (304, "Not Modified"),
    (305, "Use Proxy"), (306, "(Unused)"), (307, "Temporary Redirect"), (308, "Permanent Redirect"), (400, "Bad Request"),
    (401, "Unauthorized"), (402, "Payment Required"), (403, "Forbidden"), (404, "Not Found"), (405, "Method Not Allowed"),
    (406, "Not Acceptable"), (407, "Proxy Authentication Required"), (408, "Request Timeout"), (409, "Conflict"), (410, "Gone"),
    (411, "Length Required"), (412, "Precondition Failed"), (413, "Content Too Large"), (414, "URI Too Long"),
    (415, "Unsupported Media Type"), (416, "Range Not Satisfiable"), (417, "Expectation Failed"), (418, "(Unused)"),
    (421, "Misdirected Request"), (422, "Unprocessable Content"), (423, "Locked"), (424, "Failed Dependency"),
    (425, "Too Early"), (426, "Upgrade Required"), (428, "Precondition Required"), (429, "Too Many Requests"),
    (431, "Request Header Fields Too Large"), (451, "Unavailable For Legal Reasons"), (500, "Internal Server Error"),
    (501, "Not Implemented"), (502, "Bad Gateway"), (503, "Service Unavailable"), (504, "Gateway Timeout"),
    (505, "HTTP Version Not Supported"), (506, "Variant Also Negotiates"), (507, "Insufficient Storage"),
    (508, "Loop Detected"), (510, "Not Extended"), (511, "Network Authentication Required"),
];

#[test]
fn the_documents_have_each_status_with_its_default_verdict() {
    let page = include_str!("../../../../docs/statuses.md");
    let table = &config("").live.routes[0].statuses;
    let count_rows = |code: u16, status: &str| {
        let verdict = format!("{:?}", table.verdict_on(StatusCode::from_u16(code).unwrap(), false)).to_lowercase();
        // The page spells them `released`, `stored` and `unknown`.
        let has_it = |line: &&str| match line.split(" | ").collect::<Vec<_>>()[..] {
            [all, found, ..] => found.trim_end_matches('d') == verdict && all[2..].split(", ").any(|one| one == status),
            _ => false,
        };
        page.lines().filter(|line| line.starts_with("| ")).filter(has_it).count()
    };
    for (code, name) in REGISTERED {
        assert_eq!(count_rows(code, &format!("{code} {name}")), 1, "{code}");
    }
    // Of the others the page has those that differ from their class.
    let others = || (200..600).filter(|code| REGISTERED.iter().all(|(registered, _)| registered != code));
    let of_class = |code: u16| if code < 500 { ResponseVerdict::Store } else { ResponseVerdict::Release };
    for code in others() {
        let is_of_class = table.verdict_on(StatusCode::from_u16(code).unwrap(), false) == of_class(code);
        assert_eq!(count_rows(code, &code.to_string()), usize::from(!is_of_class), "{code}");
    }
}

#[test]
fn a_method_that_was_not_performed_is_released_and_a_lost_answer_is_unknown() {
    for text in ["", &route("dialect = 'stripe'")] {
        let table = &config(text).live.routes[0].statuses;
        let verdict = |code| table.verdict_on(StatusCode::from_u16(code).unwrap(), false);
        for code in [412, 417, 421, 423, 425, 426, 428] {
            assert_eq!(verdict(code), ResponseVerdict::Release, "{code} {text}");
        }
        for code in [424, 499, 502, 504, 520, 522, 524] {
            assert_eq!(verdict(code), ResponseVerdict::Unknown, "{code} {text}");
        }
    }
}

#[test]
fn the_rules_of_a_route_replace_those_of_its_defaults_and_each_problem_names_its_rule() {
    let shown = |text: &str| {
        let config = config(text);
        let setting = config.live.routes[0].settings().into_iter().find(|setting| setting.label == "outcome");
        setting.map(|setting| setting.value)
    };
    let rules = "outcome = [{ pointer = '/e/c', equals = -1, is = 'release' }, { pointer = '/e', without = '/d', is = 'store' }, \
                 { pointer = '/x', equals = 'no', is = 'unknown' }, { pointer = '/y', equals = 1.5, is = 'unknown' }]";
    let all = "/e/c = -1: released; /e without /d: stored; /x = \"no\": unknown; /y = 1.5: unknown";
    assert_eq!(shown(&route(rules)).as_deref(), Some(all));
    assert_eq!(shown(&format!("[defaults]\n{rules}\n{}", route(""))).as_deref(), Some(all));
    let own = route("outcome = [{ pointer = '/e', equals = true, is = 'unknown' }]");
    assert_eq!(shown(&format!("[defaults]\n{rules}\n{own}")).as_deref(), Some("/e = true: unknown"));
    assert_eq!(shown(&format!("[defaults]\n{rules}\n{}", route("outcome = []"))), None);
    for (rule, begins) in [
        ("is = 'store'", "routes[0].outcome[0].pointer: is missing"),
        ("pointer = '/e'", "routes[0].outcome[0].is: is missing"),
        ("pointer = '', is = 'store'", "routes[0].outcome[0].pointer: `` is the whole body"),
        ("pointer = 'e', is = 'store'", "routes[0].outcome[0].pointer: `e` is no JSON Pointer"),
        ("pointer = '/e', without = 'd', is = 'store'", "routes[0].outcome[0].without: `d` is no JSON Pointer"),
        ("pointer = '/e', is = 'stored'", "routes[0].outcome[0].is: `stored` is not known"),
        (
            "pointer = '/e', equals = [1], is = 'store'",
            "routes[0].outcome[0].equals: must be a text in quotes, a number",
        ),
        (
            "pointer = '/e', equals = inf, is = 'store'",
            "routes[0].outcome[0].equals: must be a text in quotes, a number",
        ),
        ("pointer = '/e', equal = 1, is = 'store'", "routes[0].outcome[0].equal: unknown key; did you mean `equals`"),
    ] {
        let problems = problems(&route(&format!("outcome = [{{ {rule} }}]")));
        assert!(problems.len() == 1 && problems[0].contains(begins), "{rule}: {problems:?}");
    }
}

#[test]
fn check_prints_the_rules_of_the_graphql_preset() {
    let described = describe(&config(&route("dialect = 'graphql'")));
    let rules = "  outcome       /errors/0 without /data: released; /errors/0: unknown  (dialect: outcome)\n";
    assert!(described.contains(rules), "{described}");
}
