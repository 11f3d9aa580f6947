//! Slips that would leave requests unguarded, or open them to others.

use super::{config, one_problem, route};

#[test]
fn paths_and_methods_of_other_programs_are_refused_with_the_right_spelling() {
    let with_path = |path: &str| format!("[[routes]]\nname = 'a'\npath = '{path}'");
    one_problem(
        &with_path("/orders/:id/pay"),
        "4:8: routes[0].path: `/orders/:id/pay` has `:id`, which is no placeholder",
    );
    one_problem(
        &with_path("/v1/*"),
        "4:8: routes[0].path: `/v1/*` has `*`, which is no placeholder here: write `{*rest}`",
    );
    one_problem(&with_path("^/v1$"), "4:8: routes[0].path: `^/v1$` is a regular expression");
    for method in ["*", "ANY", "ALL"] {
        one_problem(
            &route(&format!("methods = ['POST', '{method}']")),
            &format!(
                "5:20: routes[0].methods[1]: `{method}` is no method, and would match no request: list the methods"
            ),
        );
    }
}

#[test]
fn a_method_that_is_nearly_a_registered_one_is_a_slip_and_any_other_is_the_services_own() {
    for (method, meant) in [
        ("POTS", "POST"),
        ("PSOT", "POST"),
        ("POSTS", "POST"),
        ("PACTH", "PATCH"),
        ("DELET", "DELETE"),
        ("MKCALENDER", "MKCALENDAR"),
    ] {
        let problem =
            format!("5:12: routes[0].methods[0]: `{method}` is no registered method; did you mean `{meant}`?");
        one_problem(&route(&format!("methods = ['{method}']")), &problem);
    }
    for method in ["POST", "PUT", "GET", "PROPPATCH", "PURGE", "BAN", "X-SETTLE"] {
        config(&route(&format!("methods = ['{method}']")));
    }
}

#[test]
fn origins_take_no_credentials_that_were_given_to_others() {
    let top = "cors = { origins = ['https://a.example'], credentials = true }\n";
    let problem = "needs `credentials` beside it: `cors.credentials = true` was written for other origins";
    one_problem(
        &format!("{top}{}", route("cors.origins = ['https://b.example']")),
        &format!("6:16: routes[0].cors.origins: {problem}"),
    );
    one_problem(
        &format!("{top}[defaults]\ncors.origins = ['https://b.example']"),
        &format!("4:16: defaults.cors.origins: {problem}"),
    );
    for credentials in [true, false] {
        let own = format!("cors = {{ origins = ['https://b.example'], credentials = {credentials} }}");
        let config = config(&format!("{top}{}", route(&own)));
        assert_eq!(config.live.routes[0].cors.credentials, credentials);
    }
    assert!(
        config(&format!("{top}{}", route(""))).live.routes[0].cors.credentials,
        "origins and credentials are both the top's"
    );
    let only_credentials =
        config(&format!("cors.origins = ['https://a.example']\n{}", route("cors.credentials = true")));
    assert!(only_credentials.live.routes[0].cors.credentials);
}
