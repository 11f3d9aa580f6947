import requests


def pay(url, amount):
    fields = {"Idempotency-Key": "order-1", "Authorization": "Bearer alice"}
    return requests.post(f"{url}/v1/payments", json={"amount": amount}, headers=fields, timeout=30)


def test_a_retry_is_executed_once_and_replayed(oncegate_url, service):
    first, retry = pay(oncegate_url, 100), pay(oncegate_url, 100)
    assert (first.status_code, first.headers["Oncegate-Status"]) == (201, "executed")
    assert (retry.status_code, retry.headers["Oncegate-Status"]) == (201, "replayed")
    assert retry.content == first.content
    assert service.payments == [{"amount": 100}]


def test_after_a_lost_answer_a_retry_is_not_executed(oncegate_url, service):
    service.loses_answers = True
    first = pay(oncegate_url, 100)
    service.loses_answers = False
    retry = pay(oncegate_url, 100)
    assert (first.status_code, first.json()["code"]) == (502, "upstream-broken")
    assert (retry.status_code, retry.json()["code"]) == (409, "outcome-unknown")
    assert service.payments == [{"amount": 100}]


def test_another_body_under_the_same_key_is_refused(oncegate_url, service):
    pay(oncegate_url, 100)
    other = pay(oncegate_url, 900)
    assert (other.status_code, other.json()["code"]) == (422, "key-reused")
    assert service.payments == [{"amount": 100}]
