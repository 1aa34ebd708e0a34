"""What a fitted regressor says of new rows, and of itself."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from distgp import novelty as new
from distgp import torch_module
from distgp.aggregation import Aggregator
from distgp.checks import is_number
from distgp.data import frames
from distgp.estimator import a_count, column_of, observed, row_numbers, seed_of
from distgp.experts import Parameters
from distgp.model import Model
from distgp.settings import Settings


class Predictor(Settings):
    """An estimator whose fitted models predict; `DistributedGPRegressor` describes its parameters."""

    missing: str
    unknown: str

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        latent: bool = False,
        aggregation: str | Aggregator | None = None,
        noise_variance: Any = None,
    ) -> Any:
        """Predict at the rows of X, in the target's units.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points. Of a table, columns that the model does not need are ignored; with missing="drop"
            the predictions of incomplete rows are NaN.
        return_std : bool, default=False
            Whether to return the standard deviation too.
        return_cov : bool, default=False
            Whether to return the covariance between all points too.
        latent : bool, default=False
            Whether the uncertainty is that of the function f; by default it is that of an
            observation y = f + noise.
        aggregation : str or Aggregator, optional
            Another aggregator of the same experts, without fitting again.
        noise_variance : array-like of shape (N,), optional
            The noise variance of the observations to be predicted, in the target's units, squared. Where
            rows had noise variances in fitting, the trained factor applies, and by default their mean.

        Returns
        -------
        mean : ndarray of shape (N,) or (N, targets)
            With a target_transform, the mean of the target itself.
        std : ndarray of the same shape
            Where `return_std`.
        covariance : ndarray of shape (N, N) or (N, N, targets)
            Where `return_cov`.
        """
        if return_std and return_cov:
            raise ValueError("give return_std or return_cov, not both")
        X, keep = self._points(X)
        noise = row_numbers("noise_variance", noise_variance, len(X))
        pairs = list(zip(self.models_, self._combined(aggregation), strict=True))
        if return_cov:
            mean, covariance = self._columns(
                [m.covariance(X, latent, one, noise) for m, one in pairs]
            )
            covariance = _blanked(covariance.swapaxes(0, 1), keep).swapaxes(0, 1)
            return _blanked(mean, keep), _blanked(covariance, keep)
        if not return_std and not latent and noise is None:
            return _blanked(self._columns([(m.mean(X, one),) for m, one in pairs])[0], keep)
        mean, variance = self._columns([m.predict(X, latent, one, noise) for m, one in pairs])
        mean = _blanked(mean, keep)
        return (mean, _blanked(np.sqrt(variance), keep)) if return_std else mean

    def predict_interval(
        self,
        X: Any,
        coverage: float = 0.9,
        *,
        latent: bool = False,
        noise_variance: Any = None,
        groups: Any = None,
        aggregation: str | Aggregator | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that holds an observation with this probability.

        With `calibrate` it reaches as far as errors on rows held out say; else it is that of the
        predicted normal distribution. A target_transform is mapped back exactly.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points.
        coverage : float, default=0.9
            The probability, between 0 and 1.
        latent : bool, default=False
            Whether the interval is one for the function f. It is never calibrated: nobody observes f.
        noise_variance : array-like of shape (N,), optional
            As for `predict`.
        groups : array-like of shape (N,) or str, optional
            The group of each point, or the name of a column of X, for calibrate="mondrian".
        aggregation : str or Aggregator, optional
            Another aggregator of the same experts. Calibration is that of the model's own.

        Returns
        -------
        lower, upper : ndarray of shape (N,) or (N, targets)
        """
        q = [0.5 - 0.5 * _probability("coverage", coverage), 0.5 + 0.5 * float(coverage)]
        found = self.predict_quantiles(
            X,
            q,
            latent=latent,
            noise_variance=noise_variance,
            groups=groups,
            aggregation=aggregation,
        )
        return found[..., 0], found[..., 1]

    def predict_quantiles(
        self,
        X: Any,
        q: Any,
        *,
        latent: bool = False,
        noise_variance: Any = None,
        groups: Any = None,
        aggregation: str | Aggregator | None = None,
    ) -> np.ndarray:
        """Quantiles of an observation, or of the function f.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points.
        q : float or array-like of shape (Q,)
            Probabilities between 0 and 1.
        latent, noise_variance, groups, aggregation
            As for `predict_interval`.

        Returns
        -------
        ndarray of shape (N, Q) or (N, targets, Q)
            Without the last dimension where q is a number.
        """
        levels = [_probability("q", one) for one in np.atleast_1d(q)]
        if not levels:
            raise ValueError("q must be a probability or a list of some, got an empty list")
        groups = column_of(X, groups, "groups")
        X, keep = self._points(X)
        noise = row_numbers("noise_variance", noise_variance, len(X))
        pairs = zip(self.models_, self._combined(aggregation), strict=True)
        parts = [
            model.quantiles(*model.gaussian(X, latent, one, noise), levels, groups, latent)
            for model, one in pairs
        ]
        out = _blanked(parts[0] if self._one_target else np.stack(parts, 1), keep)
        return out if np.ndim(q) else out[..., 0]

    def predict_with_interval(
        self,
        X: Any,
        coverage: float = 0.9,
        *,
        latent: bool = False,
        aggregation: str | Aggregator | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Mean, standard deviation and interval at once, for the price of one prediction.

        Parameters
        ----------
        X, coverage, latent, aggregation
            As for `predict_interval`.

        Returns
        -------
        mean, std, lower, upper : ndarray of shape (N,) or (N, targets)
        """
        q = [0.5 - 0.5 * _probability("coverage", coverage), 0.5 + 0.5 * float(coverage)]
        X, keep = self._points(X)
        parts = []
        for model, one in zip(self.models_, self._combined(aggregation), strict=True):
            z, variance = model.gaussian(X, latent, one)
            lower, upper = model.quantiles(z, variance, q, None, latent).T
            mean, variance = model.of_target(z, variance)
            parts.append((mean, np.sqrt(variance), lower, upper))
        mean, std, lower, upper = (_blanked(values, keep) for values in self._columns(parts))
        return mean, std, lower, upper

    def _points(self, X: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows to predict as numbers, and which of them are complete; None for all."""
        check_is_fitted(self)
        keep, columns = None, self._named_columns()
        plain = not hasattr(self, "table_") and frames.is_plain(X)
        if columns is not None and frames.is_table(X) and not plain and frames.is_raw(X, columns):
            values, found = frames.encoded(X, columns, self.missing, self.unknown)
            keep = None if found.all() else found
            values = values if keep is None else np.where(keep[:, None], values, values[keep][:1])
        else:
            values = self._new_inputs(X)
        new.tell_novelty(self.models_[0], values)
        return values, keep

    def _gaussian(self, X: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        if all(model.transform is None for model in self.models_):
            return self.predict(X, return_std=True, **options)
        X, keep = self._points(X)
        combined = self._combined(options.pop("aggregation", None))
        pairs = zip(self.models_, combined, strict=True)
        latent = options.pop("latent", False)
        mean, variance = self._columns([m.gaussian(X, latent, one, **options) for m, one in pairs])
        return _blanked(mean, keep), np.sqrt(variance)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the means, of the rows that are predicted: with missing="drop", the complete ones.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points.
        y : array-like of shape (N,) or (N, targets)
            What was observed there.
        sample_weight : array-like of shape (N,), optional
            How much each row counts.

        Returns
        -------
        float
        """
        mean = self.predict(X)
        y = observed(y, mean.shape)
        fine = ~np.isnan(mean).reshape(len(mean), -1).any(1)
        weight = None if sample_weight is None else np.asarray(sample_weight)[fine]
        return float(r2_score(y[fine], mean[fine], sample_weight=weight))

    def _transformed(self, y: np.ndarray) -> tuple[np.ndarray, float]:
        columns = y[:, None] if y.ndim == 1 else y
        z, slopes = columns.astype(np.float64), np.zeros(columns.shape)
        for i, model in enumerate(self.models_):
            if model.transform is not None:
                z[:, i] = model.transform.forward(columns[:, i])
                slopes[:, i] = model.transform.log_slope(columns[:, i])
        return z.reshape(y.shape), float(slopes.mean())

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, latent: bool = False
    ) -> np.ndarray:
        """Draw from the joint posterior at the rows of X.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.
        n_samples : int, default=1
            The number of draws.
        random_state : int, RandomState or None, default=0
            The seed.
        latent : bool, default=False
            Whether to draw the function f instead of observations.

        Returns
        -------
        ndarray of shape (N, n_samples) or (N, targets, n_samples)
        """
        a_count()("n_samples", n_samples)
        X, keep = self._points(X)
        sequence = np.random.SeedSequence(seed_of(random_state))
        seeds = sequence.generate_state(len(self.models_))
        draws = [
            m.sample(X, n_samples, int(seed), latent)
            for m, seed in zip(self.models_, seeds, strict=True)
        ]
        return _blanked(draws[0] if self._one_target else np.stack(draws, axis=1), keep)

    def novelty(self, X: Any) -> np.ndarray:
        """How unlike the training rows each row is; above 1, more so than 99 % of those are.

        It is the larger of two ratios to the 99 % quantile of the training rows: of the Mahalanobis
        distance to their mean, and, where the model holds its rows, of the distance to the nearest.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.

        Returns
        -------
        ndarray of shape (N,)
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", new.NoveltyWarning)
            points, keep = self._points(X)
        return _blanked(new.novelty(self.models_[0], points), keep)

    @property
    def experts_(self) -> Any:
        """The conditioned experts, an `Ensemble`."""
        return self._of_each(lambda model: model.ensemble)

    @property
    def aggregation_(self) -> Any:
        """The aggregator in use."""
        return self._of_each(lambda model: model.aggregation)

    @property
    def weights_(self) -> Any:
        """The aggregator's weights, one per expert; None where they change from point to point."""
        return self._of_each(lambda model: _array(model.combined.weights))

    @property
    def inducing_(self) -> Any:
        """The inducing inputs in the units of the data, (m, d) or one set per expert; or None."""
        return self._of_each(_original_inducing)

    @property
    def n_inducing_(self) -> Any:
        """The number of inducing inputs per expert; None for exact experts."""
        return self._of_each(lambda model: _count(model.parameters))

    @property
    def n_experts_(self) -> int:
        """The number of experts."""
        check_is_fitted(self)
        return self.models_[0].ensemble.size

    def to_torch(self, latent: bool = False) -> torch.nn.Module:
        """A module of plain PyTorch that predicts as this model does, for use without distgp.

        For models whose sparse experts are pooled. Called with inputs (N, d) as numbers, in the units of
        the data, it returns means and standard deviations.

        Parameters
        ----------
        latent : bool, default=False
            Whether the standard deviation is that of the function f.

        Returns
        -------
        torch.nn.Module
        """
        check_is_fitted(self)
        return torch_module.of(self.models_, self._one_target, latent)


def _probability(name: str, value: Any) -> float:
    if not is_number(value) or not 0 < value < 1:
        raise ValueError(f"{name} must be a probability between 0 and 1 such as 0.9, got {value!r}")
    return float(value)


def _blanked(values: np.ndarray, keep: np.ndarray | None) -> np.ndarray:
    """NaN for the rows that are not to be predicted."""
    if keep is not None:
        values[~keep] = np.nan
    return values


def _array(value: Tensor | None) -> np.ndarray | None:
    return None if value is None else value.cpu().numpy()


def _original_inducing(model: Model) -> np.ndarray | None:
    Z = model.parameters.inducing
    return None if Z is None else model.scaling.original(Z)


def _count(parameters: Parameters) -> int | None:
    return None if parameters.inducing is None else parameters.inducing.shape[-2]
