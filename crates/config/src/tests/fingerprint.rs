//! A route's `fingerprint`.

use super::*;

#[test]
fn the_time_of_a_repeatable_request_is_always_part_of_its_fingerprint() {
    let recipe = |own: &str| config(&route(own)).live.routes[0].recipe.to_stored().to_owned();
    assert_eq!(recipe("dialect = 'repeatability'"), "1 headers=repeatability-first-sent");
    assert_eq!(
        recipe("dialect = 'repeatability'\nfingerprint.headers = ['x-a']"),
        "1 headers=x-a,repeatability-first-sent"
    );
}

#[test]
fn a_route_that_takes_other_spellings_has_the_form_of_its_paths_in_its_recipe() {
    let recipe = |path: &str, own: &str| {
        let route = format!("[[routes]]\nname = 'pay'\npath = '{path}'\n{own}");
        config(&route).live.routes[0].recipe.to_stored().to_owned()
    };
    for (path, own, stored) in [
        ("/v1/{id}/pay", "", "1"),
        ("/v1/{id}/pay", "spelling = 'pass'", "1"),
        ("/v1/{id}/pay", "spelling = 'same'", "1 path=lenient:101"),
        ("/{*rest}", "spelling = 'same'\nfingerprint.body = 'raw'", "1 body=raw path=lenient"),
    ] {
        assert_eq!(recipe(path, own), stored, "{path} {own}");
    }
}
