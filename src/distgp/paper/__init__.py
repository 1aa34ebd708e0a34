"""The paper's studies: each a declaration that writes a tidy table, pictures, and a page beside the paper's numbers."""

from distgp.paper.complexity import Complexity
from distgp.paper.consistency import Consistency
from distgp.paper.download import DataError
from distgp.paper.opticom import OptiCom
from distgp.paper.posterior import PosteriorStudy
from distgp.paper.runner import StudyError, failed_runs, rewrite_page, run_study, write_index
from distgp.paper.study import Options, Study
from distgp.paper.synthetic import SyntheticExact, SyntheticSparse
from distgp.paper.training import Training
from distgp.paper.uci import UCI

STUDIES: dict[str, type[Study]] = {
    study.name: study
    for study in (
        OptiCom,
        Training,
        PosteriorStudy,
        SyntheticExact,
        SyntheticSparse,
        UCI,
        Complexity,
        Consistency,
    )
}

__all__ = [
    "STUDIES",
    "DataError",
    "Options",
    "Study",
    "StudyError",
    "failed_runs",
    "rewrite_page",
    "run_study",
    "write_index",
]
