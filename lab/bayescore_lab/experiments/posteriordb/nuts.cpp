// Stan's No-U-Turn sampler, with Stan's warm-up, on a density that is a C function: one chain per call.
//
// The sampler is Stan's own class (adapt_diag_e_nuts, as `stan sample` runs it by default). It sees a model whose log
// density and gradient are what the function of a compiled program (bs_log_density of bayescore's layer) returns, so
// it is compiled once and samples every program.

#include <stan/math.hpp>
#include <stan/callbacks/logger.hpp>
#include <stan/mcmc/hmc/nuts/adapt_diag_e_nuts.hpp>
#include <stan/services/util/create_rng.hpp>

#include <cmath>
#include <cstdint>
#include <exception>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Vector = Eigen::VectorXd;
using Function = int64_t (*)(const void* model, int64_t n, const double* x, int64_t mode, double* value, double* grad);

constexpr int64_t JACOBIAN = 2, ONE_THREAD = 4;  // the function's mode: with all constants and the log-Jacobian

// What Stan's sampler needs of a model.
struct Density {
  Function function;
  const void* model;
  Eigen::Index dim;
  mutable int64_t calls = 0;

  size_t num_params_r() const { return static_cast<size_t>(dim); }

  double evaluate(const Vector& x, Vector& grad) const {
    ++calls;
    double value = 0;
    function(model, 1, x.data(), JACOBIAN + ONE_THREAD, &value, grad.data());
    if (!std::isfinite(value) || !grad.allFinite()) throw std::domain_error("the density is not finite here");
    return value;
  }

  template <bool propto, bool jacobian, typename T>
  T log_prob(Eigen::Matrix<T, Eigen::Dynamic, 1>& point, std::ostream*) const {
    Vector x = stan::math::value_of(point), grad(dim);
    const double value = evaluate(x, grad);
    if constexpr (stan::is_var<T>::value) {
      std::vector<stan::math::var> operands(point.data(), point.data() + dim);
      return stan::math::precomputed_gradients(value, operands, std::vector<double>(grad.data(), grad.data() + dim));
    } else {
      return value;
    }
  }
};

thread_local std::string text;

}  // namespace

#define BS_EXPORT extern "C" __attribute__((visibility("default")))

BS_EXPORT const char* nuts_text() { return text.c_str(); }

// One chain from x (D): `warmup` steps of adaptation, then `draws` states (draws x D, row-major). Returns 0, and
// counts: divergences, states at the largest tree depth, gradients of all. A failure returns 1 and leaves nuts_text().
BS_EXPORT int nuts_chain(Function function, const void* model, int64_t D, const double* x, int64_t warmup, int64_t draws,
                         double delta, int depth, uint32_t seed, uint32_t chain, double* out, int64_t* counts) {
  try {
    static thread_local stan::math::ChainableStack tape;
    Density density{function, model, static_cast<Eigen::Index>(D)};
    auto rng = stan::services::util::create_rng(seed, chain);
    stan::callbacks::logger silent;
    stan::mcmc::adapt_diag_e_nuts<Density, decltype(rng)> sampler(density, rng);
    // Stan's defaults, but for delta and depth
    sampler.set_nominal_stepsize(1);
    sampler.set_max_depth(depth);
    sampler.get_stepsize_adaptation().set_mu(std::log(10.0));
    sampler.get_stepsize_adaptation().set_delta(delta);
    sampler.get_stepsize_adaptation().set_gamma(0.05);
    sampler.get_stepsize_adaptation().set_kappa(0.75);
    sampler.get_stepsize_adaptation().set_t0(10);
    sampler.set_window_params(static_cast<unsigned>(warmup), 75, 50, 25, silent);

    Vector start = Eigen::Map<const Vector>(x, D);
    sampler.engage_adaptation();
    sampler.z().q = start;
    sampler.init_stepsize(silent);
    stan::mcmc::sample state(start, 0, 0);
    for (int64_t i = 0; i < warmup; ++i) state = sampler.transition(state, silent);
    sampler.disengage_adaptation();
    counts[0] = counts[1] = 0;
    for (int64_t i = 0; i < draws; ++i) {
      state = sampler.transition(state, silent);
      counts[0] += sampler.divergent_;
      counts[1] += sampler.depth_ >= depth;
      Eigen::Map<Vector>(out + i * D, D) = state.cont_params();
    }
    counts[2] = density.calls;
    return 0;
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "the sampler threw something that is not a C++ standard exception";
  }
  return 1;
}
