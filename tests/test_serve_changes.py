"""A server that answers quantiles, describes itself, writes a log, and changes where it is allowed to."""

import shutil

import numpy as np
import pyarrow as pa
import pytest
from test_serve import ARROW, COMMAND, arrow, start, started, table_of, written

import distgp
from distgp.regressor import unnamed

httpx = pytest.importorskip("httpx", reason="the clients of these tests are httpx's")
serve = pytest.importorskip("distgp.serve", reason="serving needs FastAPI", exc_type=ImportError)
TestClient = pytest.importorskip("starlette.testclient").TestClient


def fitted(n, seed=0, **options):
    table = table_of(n, seed)
    gp = distgp.DistributedGPRegressor("sparse", n_inducing=30, training=None, **options)
    return gp.fit(table.select(["site", "east", "dry"]), table["level"].to_numpy())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("changes")
    fitted(200, calibrate="conformal").save(folder / "closed")
    fitted(200).save(folder / "open")
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(200, 2))
    two = distgp.DistributedGPRegressor("exact", 1, training=None)
    two.fit(X, np.column_stack([X[:, 0], X.sum(1)])).save(folder / "two")
    distgp.SparseGridGP(level=3, training=None).fit(X, X[:, 0]).save(folder / "grid")
    return folder


@pytest.fixture(scope="module")
def servers(folder):
    options = ["serve", "--port", "0"]
    running = {
        "closed": start(folder, COMMAND, *options, "closed"),
        "open": start(
            folder, COMMAND, *options, "--allow", "observe,reload", "--access-log", "open"
        ),
    }
    try:
        yield {name: started(server) for name, server in running.items()}
    finally:
        for server in running.values():
            server.process.kill()
            server.process.wait()


def client(servers, name):
    return httpx.Client(base_url=servers[name].url, timeout=60)


def in_process(folder, name):
    """A client of a model that is served in this process."""
    return TestClient(serve.app(distgp.load(folder / name), observe=name == "two"))


def rows_of(n=5, seed=3, **changes):
    table = table_of(n, seed)
    return [row | changes for row in table.to_pylist()]


def detail(answer, status):
    assert answer.status_code == status and list(answer.json()) == ["detail"]
    return answer.json()["detail"]


def test_quantiles_are_those_of_the_model(servers, folder):
    gp, table = distgp.load(folder / "closed"), table_of(5, 3)
    wanted = gp.predict_quantiles(table, [0.1, 0.9])
    with client(servers, "closed") as closed:
        found = closed.post(
            "/predict?quantiles=0.1,0.9&interval=0.5", json={"rows": rows_of()}
        ).json()
        assert list(found) == ["mean", "std", "lower", "upper", "q0.1", "q0.9", "warnings"]
        np.testing.assert_allclose(np.stack([found["q0.1"], found["q0.9"]], 1), wanted, rtol=1e-12)
        np.testing.assert_allclose(found["lower"], gp.predict_interval(table, 0.5)[0], rtol=1e-12)
        body = {"content": arrow(table), "headers": {"content-type": ARROW}}
        answer = closed.post("/predict?quantiles=0.9", **body)
        with pa.ipc.open_stream(answer.content) as reader:
            columns = reader.read_all()
        assert columns.column_names == ["mean", "std", "q0.9"]
        np.testing.assert_allclose(columns["q0.9"].to_numpy(), wanted[:, 1], rtol=1e-12)
        far = {"rows": rows_of(30, east=99.0)}  # of several predictions, a warning is told once
        assert (
            len(closed.post("/predict?quantiles=0.2&interval=0.5", json=far).json()["warnings"])
            == 1
        )
    X = [[0.2, 0.4], [0.7, 0.1]]
    for name in ("two", "grid"):
        model = distgp.load(folder / name)
        with in_process(folder, name) as other:
            found = other.post("/predict?quantiles=0.05,0.5&latent=true", json={"rows": X}).json()
        mean, std = unnamed(model.predict, np.array(X), return_std=True, latent=True)
        np.testing.assert_allclose(found["q0.5"], mean, rtol=1e-9)
        np.testing.assert_allclose(found["q0.05"], mean - 1.6448536269514722 * std, rtol=1e-9)


@pytest.mark.parametrize(
    "text", ["", "x", "0.1,", "0", "1", "1.5", "-0.1", "nan", "0.1,0.1", "0.1;0.9", "0.5,inf"]
)
def test_quantiles_that_cannot_be_meant_are_refused(servers, text):
    with client(servers, "closed") as closed:
        answer = closed.post("/predict", params={"quantiles": text}, json={"rows": rows_of()})
    assert "quantiles: expected different probabilities between 0 and 1" in detail(answer, 422)


def test_very_many_quantiles_and_those_that_calibration_cannot_know_are_refused(servers):
    many = ",".join(f"{level:.4f}" for level in np.linspace(0.01, 0.99, 100))
    with client(servers, "closed") as closed:
        answer = closed.post("/predict", params={"quantiles": many}, json={"rows": rows_of()})
        assert "expected 99 at most, got 100" in detail(answer, 422)
        answer = closed.post("/predict?quantiles=0.9999", json={"rows": rows_of()})
        assert "calibration had too few rows" in detail(answer, 422)


def test_the_server_describes_its_routes(servers):
    known = {"/health", "/info", "/openapi.json", "/predict"}
    for name, more in (("closed", set()), ("open", {"/observe", "/reload"})):
        with client(servers, name) as one:
            page = one.get("/openapi.json").json()
            assert set(page["paths"]) == known | more and page["openapi"].startswith("3.")
            assert page["info"] == {"title": "distgp", "version": distgp.__version__}
            for path, methods in page["paths"].items():
                (method,) = methods
                other = "POST" if method == "get" else "GET"
                assert one.request(other, path).status_code == 405
                assert one.request(method, path).status_code != 404
            for path in {"/observe", "/reload"} - more:
                assert one.post(path).status_code == 404
    predict = page["paths"]["/predict"]["post"]
    names = [parameter["name"] for parameter in predict["parameters"]]
    assert names == ["latent", "interval", "quantiles", "unknown"]
    assert set(predict["requestBody"]["content"]) == {"application/json", ARROW}
    assert set(predict["responses"]) == {"200", "default"}
    refused = predict["responses"]["default"]["content"]["application/json"]["schema"]
    assert list(refused["properties"]) == ["detail"]
    answered = predict["responses"]["200"]["content"]["application/json"]["schema"]["properties"]
    with client(servers, "open") as one:
        found = one.post("/predict?interval=0.5", json={"rows": rows_of()}).json()
    assert set(found) == set(answered)


def test_rows_are_observed_where_that_is_allowed_and_forgotten_by_loading_again(servers, folder):
    gp, (new, more) = distgp.load(folder / "open"), (table_of(40, 5), table_of(20, 6))
    names = ["site", "east", "dry"]
    with client(servers, "open") as one:
        target = one.get("/info").json()["targets"][0]
        before = one.post("/predict", json={"rows": rows_of()}).json()["mean"]
        renamed = new.rename_columns([*names, target])
        answer = one.post("/observe", json={"rows": renamed.to_pylist()})
        assert answer.json() == {"observed": 40, "rows": 240, "warnings": []}
        body = arrow(more.rename_columns([*names, target]))
        answer = one.post("/observe", content=body, headers={"content-type": ARROW})
        assert answer.json()["rows"] == one.get("/info").json()["rows"] == 260
        gp.partial_fit(new.select(names), new["level"].to_numpy())
        gp.partial_fit(more.select(names), more["level"].to_numpy())
        after = one.post("/predict", json={"rows": rows_of()}).json()["mean"]
        np.testing.assert_allclose(after, gp.predict(table_of(5, 3)), rtol=1e-9)
        assert one.post("/reload").json() == {"rows": 200}
        assert one.post("/predict", json={"rows": rows_of()}).json()["mean"] == before
    with in_process(folder, "two") as two:
        row = {"x0": 0.5, "x1": 0.5, "y0": 0.5, "y1": 1.0}
        assert two.post("/observe", json={"rows": [row, row]}).json()["rows"] == 202


def test_observations_that_cannot_be_meant_are_refused(servers):
    with client(servers, "open") as one:
        (target,) = one.get("/info").json()["targets"]
        for change, said in [
            ({}, f"lacks {target!r}"),
            ({target: None}, "missing or infinite"),
            ({target: "much"}, "column"),
        ]:
            answer = one.post("/observe", json={"rows": rows_of(**change)})
            assert said in detail(answer, 422)
        assert "content type" in detail(one.post("/observe", content=b"rows"), 415)
        page = {"origin": "http://localhost"}
        for path in ("/observe", "/reload"):
            answer = one.post(path, json={"rows": []}, headers=page)
            assert "pages in browsers" in detail(answer, 403)
            assert detail(one.post(path, headers={"host": "attacker.example"}), 421)
        assert one.get("/info").json()["rows"] == 200


def test_another_file_is_loaded_and_a_damaged_one_is_not(servers, folder):
    shutil.copy(folder / "open", folder / "before")
    with client(servers, "open") as one:
        fitted(150, seed=8).save(folder / "open")
        assert (
            one.post("/reload").json() == {"rows": 150} and one.get("/info").json()["rows"] == 150
        )
        (folder / "open").write_bytes(b"damaged")
        said = detail(one.post("/reload"), 503)
        assert "still served" in said and str(folder) not in said
        assert one.post("/predict", json={"rows": rows_of()}).status_code == 200
        written(servers["open"], "could not be loaded again")
        shutil.copy(folder / "before", folder / "open")
        assert one.post("/reload").json() == {"rows": 200}


def test_the_access_log_has_a_line_for_each_request_and_none_where_it_is_off(servers):
    with client(servers, "open") as one:
        one.get("/health")
        one.post("/predict?interval=2", json={"rows": [["secret", 1.0, True]]})
        one.get("/in%0Afo%1b")
    log = written(servers["open"], "GET /in%0Afo%1b 404")
    lines = [line for line in log.splitlines() if line.endswith(" ms")]
    asked = [line.split(" ", 2)[2] for line in lines[-3:]]
    wanted = [r"GET /health 200", r"POST /predict?interval=2 422", r"GET /in%0Afo%1b 404"]
    assert [line.rsplit(" ", 2)[0] for line in asked] == wanted
    assert all(" 127.0.0.1 " in line for line in lines[-3:])
    assert "secret" not in log
    with client(servers, "closed") as other:
        other.get("/health")
    assert "/health" not in servers["closed"].log.read_text()


def test_what_cannot_be_allowed_is_told_before_the_server_listens(folder):
    with pytest.raises(ValueError, match="allowed to observe or reload, got everything"):
        serve.serve(folder / "two", port=0, allow=["everything"])
    with pytest.raises(ValueError, match="a SparseGridGP cannot learn from new rows"):
        serve.app(distgp.load(folder / "grid"), observe=True)
    X = pa.table({"y": np.arange(30.0), "a": np.arange(30.0) % 7})
    gp = distgp.DistributedGPRegressor("exact", training=None).fit(X, np.arange(30.0) % 5)
    with pytest.raises(ValueError, match="both called 'y'"):
        serve.app(gp, observe=True)
