//! One request: decided, passed on or answered, and given back if the service failed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, header};
use tollgate_core::Outcome;
use tower_service::Service;

use super::body::Body;
use super::refusal::Voice;
use super::{Rule, Settings};
use crate::answer::Answer;
use crate::error::Error;
use crate::policy::Policy;
use crate::seldom::Seldom;
use crate::subject::Subject;

static STORE_DOWN: Seldom = Seldom::new();

/// A service whose requests are counted.
#[derive(Clone, Debug)]
pub struct TollgateService<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> TollgateService<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for TollgateService<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    RequestBody: Send + 'static,
    ResponseBody: Send,
{
    type Response = Response<Body<ResponseBody>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        // The one that was found ready is the one to call.
        let waiting = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, waiting);
        let settings = self.settings.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let answer = match settings.decide(&parts).await {
                Ok(answer) => answer,
                Err(response) => return Ok(response),
            };
            let answered = inner.call(Request::from_parts(parts, body)).await;
            let Some(answer) = answer else { return answered.map(|r| r.map(Body::of_service)) };
            let has_failed = match &answered {
                Ok(response) => (settings.refund_when)(response.status(), response.headers()),
                Err(_) => true,
            };
            if has_failed {
                settings.refund(&answer).await;
            }
            let mut response = answered?.map(Body::of_service);
            crate::wire::add_rate_limit_headers(&answer, response.headers_mut());
            Ok(response)
        })
    }
}

impl Settings {
    /// What was decided, if the request may go on; `None` if nothing limits it. The error is the
    /// answer to the client.
    async fn decide<B>(&self, parts: &Parts) -> Result<Option<Answer>, Response<Body<B>>> {
        let cost = (self.cost)(parts);
        if cost == 0 {
            return Ok(None);
        }
        let voice = Voice::of(&parts.headers, self.refusal_body);
        let answer = match &self.rule {
            Rule::Value(limiter) => {
                let subject = self.subject(parts);
                let answer = limiter.check(&subject.pairs(), cost).await;
                answer.map_err(|error| {
                    let policy = Some(limiter.policy().policy());
                    self.fail(voice, policy, &subject, &error)
                })
            }
            Rule::Stored(name) => {
                let subject = self.subject(parts);
                let answer = self.gate.check(name, &subject.pairs(), cost).await;
                answer.map_err(|error| {
                    let policy = self.gate.policy(name).ok();
                    self.fail(voice, policy.as_ref().map(|p| p.policy()), &subject, &error)
                })
            }
            Rule::Routes => match self.check_route(parts, cost, voice).await {
                Ok(Some(answer)) => Ok(answer),
                Ok(None) => return Ok(None),
                Err(response) => Err(response),
            },
        }?;
        match answer.decision.outcome {
            Outcome::Allowed => Ok(Some(answer)),
            Outcome::Refused { .. } => Err(voice.refuse(StatusCode::TOO_MANY_REQUESTS, &answer)),
            Outcome::NeverFits => Err(voice.refuse(StatusCode::UNPROCESSABLE_ENTITY, &answer)),
        }
    }

    async fn check_route<B>(
        &self,
        parts: &Parts,
        cost: u32,
        voice: Voice,
    ) -> Result<Option<Answer>, Response<Body<B>>> {
        let method = parts.method.as_str();
        while let Some(matched) = self.gate.route(method, parts.uri.path()) {
            if matched.is_deceptive() {
                let why = "this path can be read in two ways: write it without \"..\"";
                return Err(voice.fail(StatusCode::BAD_REQUEST, why));
            }
            let mut subject = self.subject(parts);
            subject.add_route(&matched, method);
            let policy = matched.policy().policy();
            match self.gate.check(policy.name(), &subject.pairs(), cost).await {
                Ok(answer) => return Ok(Some(answer)),
                // Deleted meanwhile: its routes are gone with it.
                Err(Error::NoSuchPolicy(_)) => {}
                Err(error) => return Err(self.fail(voice, Some(policy), &subject, &error)),
            }
        }
        Ok(None)
    }

    fn subject<'a>(&'a self, parts: &'a Parts) -> Subject<'a> {
        let mut subject = Subject::default();
        for key in &self.keys {
            key.add(parts, &mut subject);
        }
        subject
    }

    /// Somebody who is not known is told so; what is wrong on this side is told only to the log.
    fn fail<B>(
        &self,
        voice: Voice,
        policy: Option<&Policy>,
        subject: &Subject<'_>,
        error: &Error,
    ) -> Response<Body<B>> {
        match error {
            Error::BadSubject(_) => {
                let missing = policy.and_then(|policy| policy.missing_from(&subject.pairs()));
                match missing {
                    Some(name) => voice.fail(
                        StatusCode::UNAUTHORIZED,
                        &format!("this request does not say who asks: {name:?} is missing"),
                    ),
                    None => voice.fail(StatusCode::BAD_REQUEST, &error.to_string()),
                }
            }
            Error::Store(_) => {
                if let Some(left_out) = STORE_DOWN.due() {
                    tracing::error!(%error, left_out, "the store could not answer");
                }
                let why = "the rate limit cannot be checked now";
                let mut response = voice.fail(self.store_error_status, why);
                let soon = HeaderValue::from_static("1");
                response.headers_mut().insert(header::RETRY_AFTER, soon);
                response
            }
            _ => {
                tracing::error!(%error, "a request could not be checked");
                let why = "the rate limit cannot be checked";
                voice.fail(StatusCode::INTERNAL_SERVER_ERROR, why)
            }
        }
    }

    async fn refund(&self, answer: &Answer) {
        let Some(receipt) = &answer.receipt else { return };
        if let Err(error) = self.gate.refund(receipt).await {
            tracing::warn!(%error, "what a failed request spent was not given back");
        }
    }
}
