"""What is written down holds no credential: each form in which people put one into a URI, and those that are none."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest

from headway.data_contracts.store.credentials import credential_in_uri, credential_in_value, is_secret_name
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.file_systems import open_file_system, refuse_credentials

DRAWN = "Zk9Qv2Lr8XwT4sNb7Yc1"
REFUSED = [
    f"https://user:{DRAWN}@host/data",
    f"https://{DRAWN}@host/data",
    "https://reader@host/data",
    f"https://user:half/{DRAWN}@host/data",
    f"https://host/data.csv?sig={DRAWN}",
    f"https://host/data.csv?sv=2022-11-02&sr=b&sig={quote(DRAWN + '+/=')}",
    f"https://host/data.csv?api_key={DRAWN}",
    f"https://host/data.csv?apiKey={DRAWN}",
    f"https://host/data.csv?X-Amz-Credential={DRAWN}&x=1",
    f"https://host/data.csv?auth={DRAWN}",
    f"https://host/data.csv?key={DRAWN}",
    f"https://host/data.csv?q={DRAWN}",
    f"https://host/data.csv?format=csv;pwd={DRAWN}",
    f"https://host/data.csv#access_token={DRAWN}",
    "https://host/ghp_abcdefghijklmnop1234/data.csv",
    f"https://user:12/34{DRAWN}@host/data",
    f"https://user:1?2{DRAWN}@host/data",
    f"//user:{DRAWN}@host/data",
    f"https:/user:{DRAWN}@host/data",
    f"https:\\\\user:{DRAWN}@host/data",
    f"s3://bucket/x?aws_key={DRAWN[:8]}",
    "https://host/" + "a" * 10_000,
    "https://[::1/data?password=x",
    f"s3://AKIA:{DRAWN}@bucket/x",
    "s3://AKIAIOSFODNN7EXAMPLE@bucket/x",
    f"s3://bucket/x?secret={DRAWN}",
    f"simplecache::https://user:{DRAWN}@host/data.csv",
    f"zip://a.csv::https://host/all.zip?sig={DRAWN}",
    f"filecache::s3://key:{DRAWN}@bucket/data.csv",
    f"https://proxy/fetch?url={quote(f'https://user:{DRAWN}@host/data', safe='')}",
    f"https://proxy/https://user:{DRAWN}@host/data",
    f"https://host/data%3Fsig%3D{DRAWN}",
    f"mssql+pyodbc:///?odbc_connect={quote(f'DRIVER=x;SERVER=y;PWD={DRAWN}')}",
    f"postgresql://db/mlflow?user=u&password={DRAWN}",
    *(
        f"https://host/data?{name}={DRAWN[:7]}"
        for name in (
            *("clientsecret", "accountkey", "secretkey", "dbpassword", "apitoken", "sslpassword", "encryption_key"),
            *(
                "delegation",
                "pat",
                "otp",
                "passcode",
                "key",
                "hmac",
                "cred",
                "creds",
                "authToken",
                "userpass",
                "sessionid",
                "psk",
                "sse_key",
            ),
        )
    ),
    f"https://host/path;jsessionid={DRAWN[:7]}",
    f"dbfs:/x?token={DRAWN[:7]}",
    f"http:user:{DRAWN}@host/data",
    f"https://hooks.slack.com/services/T012AB3CD/B012AB3CD/{DRAWN}",
    f"https://discord.com/api/webhooks/1234567890/{DRAWN}",
    f"https://api.telegram.org/bot123456:{DRAWN}/getFile",
]
TAKEN = [
    "s3://bucket/prefix",
    "s3://bucket/data.csv?versionId=3sL4kqtJlcpXroDTDmJ_rmSpXd3dIbrHY",
    "gs://bucket/o#generation=1612345678901234",
    "https://host:8443/data.csv?format=csv&gid=0",
    "https://docs.host/export?id=1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms",
    "https://[::1]:9000/data",
    "https://host:8443/@scope/package",
    "/data/reports:v1@2/x",
    "sftp://reader@host/data",
    "abfs://container@account.dfs.core.windows.net/data",
    "zip://a.csv::https://host/all.zip",
    "simplecache::s3://bucket/data",
    "postgresql://user@db/mlflow",
    "sqlite:////a/mlflow.db?timeout=20",
    "memory://workspace",
    "/home/me/keys=all/data?token=x",
    "python:sklearn/datasets/data",
    "/data/key=a/part.parquet",
    "s3://bucket/key=a/token=b/part.parquet",
    "/data/sk-learn-datasets-of-2024/x",
    "/data/pk_customer_identifier_2/x",
    "C:/data/x?token=y",
    "https://host/monkey?partition_key=a&public_key=b",
    "https://discord.com/developers/docs",
]


@pytest.mark.parametrize("uri", REFUSED)
def test_a_credential_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ConfigError, match="must not hold credentials") as refused:
        refuse_credentials(uri)
    assert DRAWN not in str(refused.value) and refused.value.where and refused.value.advice


@pytest.mark.parametrize("uri", TAKEN)
def test_a_uri_without_credentials_is_taken(uri: str) -> None:
    assert credential_in_uri(uri) == ""


@pytest.mark.parametrize("uri", [f"simplecache::https://user:{DRAWN}@host/data", f"memory://x?sig={DRAWN}"])
def test_no_file_system_is_opened_by_a_uri_with_credentials(uri: str) -> None:
    with pytest.raises(ConfigError, match="must not hold credentials"):
        open_file_system(uri)


def test_a_long_text_costs_no_time_that_grows_with_its_square() -> None:
    started_s = time.process_time()
    assert credential_in_uri("a" * 1_000_000 + " ://x")
    assert time.process_time() - started_s < 5


@pytest.mark.parametrize(
    "name",
    [
        *(
            "WANDB_API_KEY",
            "apiKey",
            "DB_PASSWORD",
            "slack_token",
            "X-Amz-Signature",
            "sig",
            "PGPASSWORD",
            "DBPASSWORD",
        ),
        *("OPENAI_KEY", "STRIPE_KEY", "SSH_KEY", "SECRETKEY", "CLIENTSECRET", "GITHUBTOKEN", "SENTRY_DSN", "GCP_CREDS"),
        *("DBPASS", "AZURE_STORAGE_CONNECTION_STRING", "dbpassword", "passphrase1"),
    ],
)
def test_a_name_of_a_secret_is_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("DB_PASSWORD_FILE", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "KEYS", "PARTITION_KEY", "OMP_NUM_THREADS", ""),
        *("PUBLIC_KEY", "MONKEY", "KEY", "primary_key", "foreignkey", "OLDPWD", "COMPASS", "BYPASS", "SECRETARY"),
        *("TOKENIZER", "KEYBOARD", "AUTHOR", "PASSENGERS", "HOTKEY", "DESIGN", "SESSIONS", "CREDIT_RISK", "TURKEY"),
    ],
)
def test_a_name_of_none_is_taken(name: str) -> None:
    assert not is_secret_name(name)


TOKENS = [
    "ghp_abcdefghijklmnop1234",
    "AKIAIOSFODNN7EXAMPLE",
    "sk-proj-abcdefghijklmnop12345678",
    f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={DRAWN}==;EndpointSuffix=core.windows.net",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE",
    "-----BEGIN PRIVATE KEY-----",
    f"https://hooks.slack.com/services/T012AB3CD/B012AB3CD/{DRAWN}",
    f"Bearer eyJ{DRAWN}.{DRAWN}",
    DRAWN,
    *("host=db user=me password=hunter22", "password = hunter22", "dbname=shop&pwd=hunter22", "--token=hunter22"),
    *("authorization=Basic aGVsbG8=", "x-tenant=a,x-api-key=hunter22", "Authorization: Bearer hunter22"),
    *('{"user": "me", "password":"hunter22"}', "{'secret': 'hunter22'}", "-Djavax.net.ssl.trustStorePassword=changed"),
    *("curl -u me:hunter22 https://x/y", "curl -ume:hunter22 x", "curl --user 'me:hunter22' x", "-u me:hunter22"),
    *("--user=me:hunter22", "curl -x proxy -U me:hunter22", "curl --proxy-user me:hunter22", "http -a me:hunter22 x"),
    *("docker run -e A=1 image; curl -u me:hunter22 x", "wget --http-password hunter22 x", "prog --password hunter22"),
    *("prog --api-key hunter22", "prog --client-secret 'hunter22' --now", "-password hunter22", "--token hunter22"),
    *("sshpass -p hunter22 ssh x", "sshpass -phunter22 ssh x", "mysql -u root -phunter22 db", "mysqldump -phunter22"),
    *("docker login -u me -p hunter22 registry.example", "redis-cli -h x -a hunter22", "unzip -P hunter22 a.zip"),
    *("ldapsearch -x -D cn=a -w hunter22", "openssl rsa -in k -passin pass:hunter22", "7z x -phunter22 a.7z"),
    *("Authorization: Basic bWU6aHVudGVyMjI=", "Basic bWU6aHVudGVyMjI=", "basic bWU6aHVudGVyMjI="),
    *("-H 'Authorization: Basic bWU6aHVudGVyMjI='", f"Bearer {DRAWN}", f"curl -H 'X: Token {DRAWN}'"),
]
PLAIN = [
    *("", "production", "0", "2026-11-23T15:55:42", "3f786850e387550fdab836ed7e6dc881de23001b", "s3://bucket/key=a/x"),
    *(
        "6f1c2a34-9f0e-4c55-8a6d-2b1f0c9d7e11",
        "HeadwayTraining2024Production",
        "/srv/headway/py311/lib64/site-packages",
    ),
    *("pk_customer_identifier_2", "sk-learn-datasets-of-2024", "python:3.11@sha256:abc", "key", "alice@example.org"),
    *("-----BEGIN CERTIFICATE-----", "meta-llama/Llama-3.1-8B-Instruct", "Standard_NC24ads_A100_v4", "8:30"),
    *("auth-service:8080", "registry.example/token-service:v1.2", "host=db user=me passfile=/run/pass", "auth=off"),
    *(
        "password=$DB_PASSWORD",
        "token = {{ prefect.variables.t }}",
        '{"ServerSideEncryption": "aws:kms"}',
        "max_tokens=5",
    ),
    *("docker run -u 1000:1000 image", "docker run --user app:app image", "podman run -u nobody:nogroup x", "-u 10:20"),
    *("mkdir -p folder", "ssh -p 22 host", "ssh -p 2222 me@host", "docker run -p 80:80 x", "cp -a here there", "-u me"),
    *("curl -u $USER:$PASSWORD x", "curl -u me: x", "prog --password-file /run/secret", "--password-stdin --now"),
    *("prog --password $DB_PASSWORD", "prog --token {{ token }}", "tmux new --session train", "prog --auth basic"),
    *(
        "prog --max-tokens many",
        "prog --tokenizer words",
        "--no-password here",
        "a --token-limit 500",
        "git push -u origin",
    ),
    *("mysql -p", "mysql -p database", "basic authentication", "Basic training of models", "bearer of bad news"),
    *("token classification", "token bucketing", "the user me:you said so", "grep -u a:b", "chown -R app:app /srv"),
    *("python3.11 -u train.py:main", "uvicorn -a app:main", "rsync -a me:folder x", "rsync -u me:folder x"),
    *("the password is asked for", "docker compose -p project up", "az group list -p project", "kubectl logs -p pod"),
    *("passing -p over", "zip -r a.zip folder", "login to the host", "headway retrain --pipeline words --why token"),
]


@pytest.mark.parametrize("value", TOKENS)
def test_a_credential_is_known_by_its_value_whatever_it_is_called(value: str) -> None:
    found = credential_in_value(value)
    assert found and DRAWN not in found


@pytest.mark.parametrize("value", PLAIN)
def test_a_value_that_opens_nothing_is_taken(value: str) -> None:
    assert credential_in_value(value) == ""
