//! A client of an MLflow server's REST API.

use std::env;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use unix::{Error, Exit, Result, small, text};
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of a response in bytes.
const MAX_RESPONSE: u64 = 64 << 20;
/// Maximum size of a certificate file in bytes.
const MAX_CERTIFICATES: u64 = 16 << 20;

/// A server and the credentials of this user.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    url: String,
    authorization: Option<String>,
}

/// The response of a server.
pub(super) enum Answer {
    /// The body of a successful response.
    Done(Value),
    /// The error code of a refused request, and its message as an error.
    Refused(String, Error),
}

impl Client {
    /// Creates a client for the server at `url`, with the token in `MLFLOW_TRACKING_TOKEN` or the user and password in
    /// `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`. The certificate of an https server must be issued by
    /// a public authority or by one in the PEM file `MLFLOW_TRACKING_SERVER_CERT_PATH`. Errors: 2 for an invalid server
    /// URL or one that contains a password; 65, 66 for a bad certificate file.
    pub fn new(url: &str) -> Result<Self> {
        let url = url.trim_end_matches('/');
        let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        match host {
            None | Some("") => {
                return Err(Error::usage("--url must begin with http:// or https://"));
            }
            Some(host) if host.split('/').next().is_some_and(|host| host.contains('@')) => {
                return Err(Error::usage(
                    "--url contains a user or password; set MLFLOW_TRACKING_USERNAME and \
                     MLFLOW_TRACKING_PASSWORD in the environment instead",
                ));
            }
            Some(_) => {}
        }
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let basic = || {
            let user = variable("MLFLOW_TRACKING_USERNAME")?;
            let password = variable("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
            Some(format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))))
        };
        let token = variable("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
        let config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .user_agent("longhaul")
            .tls_config(match variable("MLFLOW_TRACKING_SERVER_CERT_PATH") {
                Some(path) => trusting(Path::new(&path))?,
                None => TlsConfig::default(),
            })
            .build();
        let authorization = token.or_else(basic);
        Ok(Self { agent: config.into(), url: url.to_string(), authorization })
    }

    /// The URL of the server.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Reads from the API. Errors: 74 when the server cannot be reached or its response is not from MLflow.
    pub(super) fn get(&self, path: &str, query: (&str, &str)) -> Result<Answer> {
        let request = self.agent.get(self.api_url(path)).query(query.0, query.1);
        self.answer(self.authorized(request).call())
    }

    /// Sends a request; a refusal is an error.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        match self.try_post(path, body)? {
            Answer::Done(value) => Ok(value),
            Answer::Refused(_, error) => Err(error),
        }
    }

    /// Sends a request; returns [`Answer::Refused`] instead of an error if the server refuses it.
    pub(super) fn try_post(&self, path: &str, body: &Value) -> Result<Answer> {
        let request = self.agent.post(self.api_url(path)).content_type("application/json");
        self.answer(self.authorized(request).send(body.to_string()))
    }

    /// Stores an artifact; every part of the path is encoded.
    pub(super) fn put(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let encoded = path.bytes().map(|byte| match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        });
        let url = format!("{}/api/2.0/mlflow-artifacts/artifacts/", self.url);
        let url = url + &encoded.collect::<String>();
        let request = self.authorized(self.agent.put(url));
        match self.answer(request.send(bytes))? {
            Answer::Done(_) => Ok(()),
            Answer::Refused(_, error) => Err(error),
        }
    }

    fn api_url(&self, path: &str) -> String {
        format!("{}/api/2.0/mlflow/{path}", self.url)
    }

    fn authorized<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.authorization {
            Some(value) => request.header("Authorization", value),
            None => request,
        }
    }

    fn answer(&self, sent: Result<Response<Body>, ureq::Error>) -> Result<Answer> {
        let unreachable = |cause: ureq::Error| {
            let advice = "check --url, and that the server is running and can be reached from here";
            Error::new(Exit::Io, format!("{}: {cause}; {advice}", self.url))
        };
        let mut response = sent.map_err(unreachable)?;
        let body = response.body_mut().with_config().limit(MAX_RESPONSE).read_to_string();
        let (status, body) = (response.status(), body.map_err(unreachable)?);
        let value = serde_json::from_str::<Value>(&body).ok().filter(Value::is_object);
        match value {
            Some(value) if status.is_success() => Ok(Answer::Done(value)),
            Some(value) if value["error_code"].is_string() => {
                let [code, message] = ["error_code", "message"]
                    .map(|field| value[field].as_str().unwrap_or_default().to_string());
                let shown = text::quote(&message);
                let error = format!("{}: {code} ({}): {shown}", self.url, status.as_u16());
                Ok(Answer::Refused(code, Error::failure(error)))
            }
            // Storing an artifact returns an empty response.
            _ if status.is_success() && body.trim().is_empty() => Ok(Answer::Done(Value::Null)),
            _ if matches!(status.as_u16(), 401 | 403) => Err(Error::failure(format!(
                "{}: access denied ({status}); set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and \
                 MLFLOW_TRACKING_PASSWORD, in the environment",
                self.url
            ))),
            _ => Err(Error::failure(format!(
                "{}: unexpected response (status {status}), probably not an MLflow server; check --url",
                self.url
            ))),
        }
    }
}

/// Trusts the certificates in a PEM file instead of the public authorities.
fn trusting(path: &Path) -> Result<TlsConfig> {
    let bad = |cause: &dyn std::fmt::Display| Error::data(format!("{}: {cause}", path.display()));
    let mut certificates = Vec::new();
    for item in parse_pem(&small::read(path, MAX_CERTIFICATES)?) {
        if let PemItem::Certificate(certificate) = item.map_err(|cause| bad(&cause))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(bad(&"it contains no certificate in PEM format"));
    }
    Ok(TlsConfig::builder().root_certs(RootCerts::from(certificates)).build())
}
