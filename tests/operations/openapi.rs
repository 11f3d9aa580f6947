//! The OpenAPI document of the admin API, and a client that is generated from it.

use std::fs;
use std::process::Command;

use serde_json::Value;

use harness::client::Client;
use harness::operator::unknown;
use harness::{Store, World};

#[tokio::test]
async fn the_document_is_served_without_a_token_and_printed_as_it_is_committed() {
    let world = World::with(Store::sqlite(), |setup| setup.admin("token = \"a-token-of-operators\"")).await;
    let committed = fs::read_to_string(harness::root().join("docs/openapi.json")).unwrap();
    let request = Client { address: world.proxy.admin }.get("/api/v1/openapi.json").host("of.another.name");
    let served = request.anonymous().send().await;
    assert_eq!((served.status, served.field("content-type")), (200, Some("application/json")));
    let [served, expected] = [&served.text(), &committed].map(|text| serde_json::from_str::<Value>(text).unwrap());
    assert_eq!(served, expected);
    let printed = Command::new(env!("CARGO_BIN_EXE_oncegate")).args(["schema", "--admin"]).output().unwrap();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), committed);
}

#[tokio::test]
async fn a_client_generated_from_the_document_works_and_each_answer_is_as_the_document_says() {
    let python = harness::python();
    let can_import = Command::new(&python).args(["-c", "import jsonschema, openapi_python_client"]).output();
    if !can_import.is_ok_and(|ended| ended.status.success()) {
        return harness::skip(
            "the packages of tests/openapi/requirements.txt are not installed (make test installs them)",
        );
    }
    let world = World::guarding(Store::sqlite(), "").await;
    for number in 0..3 {
        unknown(&world, &format!("k-{number}")).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut client = Command::new(python);
    client.arg(harness::root().join("tests/openapi/client.py")).arg(world.proxy.admin.to_string()).arg(folder.path());
    let ended = tokio::task::spawn_blocking(move || client.output().unwrap()).await.unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}
