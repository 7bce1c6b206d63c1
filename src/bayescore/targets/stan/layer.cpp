// The C functions that bayescore calls through ctypes: one Stan model, many draws per call.
//
// Points are rows of a matrix n x D in row-major order. No exception leaves this file: a function that fails says so
// by its result, and bs_text() holds the message until the same thread calls again. A draw that Stan rejects gets the
// value -inf (variables: NaN) and a NaN gradient, and its neighbours are not touched.

#include <stan/io/json/json_data.hpp>
#include <stan/model/model_base.hpp>
#include <stan/services/util/create_rng.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#define BS_EXPORT extern "C" __attribute__((visibility("default")))

// Defined by the C++ that stanc writes.
stan::model::model_base& new_model(stan::io::var_context& data, unsigned int seed, std::ostream* messages);

namespace {

using Model = stan::model::model_base;
using Vector = Eigen::VectorXd;
using Variables = Eigen::Matrix<stan::math::var, Eigen::Dynamic, 1>;

constexpr double NOT_A_NUMBER = std::numeric_limits<double>::quiet_NaN();
constexpr double MINUS_INFINITY = -std::numeric_limits<double>::infinity();
constexpr const char* STRANGE = "the model threw something that is not a C++ standard exception";

thread_local std::string text;

// Runs f; false, and the message in `text`, if it threw.
template <typename F>
bool succeeds(F&& f) {
  try {
    f();
    return true;
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = STRANGE;
  }
  return false;
}

// Every thread that differentiates needs a tape of its own.
void ensure_tape() { static thread_local stan::math::ChainableStack tape; }

// Clears the tape when a draw is done, also after an exception.
struct TapeGuard {
  ~TapeGuard() {
    while (!stan::math::empty_nested()) stan::math::recover_memory_nested();
    stan::math::recover_memory();
  }
};

struct Density {
  bool propto, jacobian;

  template <typename T>
  T operator()(const Model& model, Eigen::Matrix<T, Eigen::Dynamic, 1>& x) const {
    if (propto) return jacobian ? model.log_prob_propto_jacobian(x, nullptr) : model.log_prob_propto(x, nullptr);
    return jacobian ? model.log_prob_jacobian(x, nullptr) : model.log_prob(x, nullptr);
  }
};

double gradient_at(const Model& model, Density density, const double* x, Eigen::Index D, double* grad) {
  TapeGuard guard;
  Variables point(D);
  for (Eigen::Index i = 0; i < D; ++i) point[i] = stan::math::var(x[i]);
  stan::math::var lp = density(model, point);
  const double value = lp.val();
  stan::math::grad(lp.vi_);
  for (Eigen::Index i = 0; i < D; ++i) grad[i] = point[i].adj();
  return value;
}

double value_at(const Model& model, Density density, const double* x, Eigen::Index D) {
  if (density.propto) {  // of plain numbers every term is a constant, and Stan would drop them all
    TapeGuard guard;
    Variables point(D);
    for (Eigen::Index i = 0; i < D; ++i) point[i] = stan::math::var(x[i]);
    return density(model, point).val();
  }
  Vector point = Eigen::Map<const Vector>(x, D);
  return density(model, point);
}

// How many draws were rejected, and the message of the first.
struct Rejections {
  int64_t count = 0;
  std::string message;

  void add(const char* what) {
    if (count++ == 0) message = what;
  }
};

// Runs work(i) for i in [0, n), on several threads where that pays: the first draw is timed, and threads are started
// only if the rest takes longer than starting them. Returns the number of draws for which it threw.
template <typename F>
int64_t for_each_draw(int64_t n, int64_t threads, F&& work) {
  auto run = [&work](int64_t from, int64_t to, Rejections& rejections) {
    ensure_tape();
    for (int64_t i = from; i < to; ++i) {
      try {
        work(i);
      } catch (const std::exception& error) {
        rejections.add(error.what());
      } catch (...) {
        rejections.add(STRANGE);
      }
    }
  };
  constexpr double worth_a_thread = 2e-4;  // seconds of work; starting a thread costs about a quarter of it
  std::vector<Rejections> parts(1);
  int64_t done = 0, workers = 1;
  if (threads > 1 && n > 1) {
    const auto began = std::chrono::steady_clock::now();
    run(0, done = 1, parts[0]);
    const double each = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const double worth = each * static_cast<double>(n - 1) / worth_a_thread;
    workers = std::min({threads, n - 1, static_cast<int64_t>(std::min(worth, 1e6)) + 1});
  }
  const int64_t chunk = (n - done + workers - 1) / workers;
  parts.resize(workers);
  std::vector<std::thread> pool;
  for (int64_t w = 1; w < workers; ++w) {
    const int64_t from = std::min(n, done + w * chunk), to = std::min(n, from + chunk);
    try {
      pool.emplace_back([&run, &parts, from, to, w] { run(from, to, parts[w]); });
    } catch (const std::system_error&) {  // the machine gives no more threads
      run(from, to, parts[w]);
    }
  }
  run(done, std::min(n, done + chunk), parts[0]);
  for (auto& thread : pool) thread.join();
  int64_t count = 0;
  for (const auto& part : parts) {
    if (count == 0 && part.count) text = part.message;
    count += part.count;
  }
  return count;
}

}  // namespace

BS_EXPORT const char* bs_text() { return text.c_str(); }

// A model from data as JSON text, or null.
BS_EXPORT Model* bs_new_model(const char* json, uint32_t seed) {
  Model* model = nullptr;
  succeeds([&] {
    ensure_tape();
    std::istringstream in(json);
    stan::json::json_data data(in);
    std::ostringstream messages;
    model = &new_model(data, seed, &messages);
  });
  return model;
}

BS_EXPORT void bs_free_model(Model* model) { delete model; }

BS_EXPORT int64_t bs_dim(const Model* model) { return static_cast<int64_t>(model->num_params_r()); }

// Puts names, joined by newlines, into bs_text(). what: 0 unconstrained; 1 parameters; 2 and transformed parameters;
// 3 and generated quantities.
BS_EXPORT int bs_names(const Model* model, int what) {
  return succeeds([&] {
    std::vector<std::string> names;
    if (what == 0)
      model->unconstrained_param_names(names, false, false);
    else
      model->constrained_param_names(names, what >= 2, what >= 3);
    std::string joined;
    for (const auto& name : names) joined += name + '\n';
    text = joined;
  });
}

// Log densities (n) and, unless grad is null, gradients (n x D); returns how many draws were rejected. mode holds
// propto in bit 0, jacobian in bit 1, and above them the number of threads.
BS_EXPORT int64_t bs_log_density(const Model* model, int64_t n, const double* x, int64_t mode, double* value,
                                 double* grad) {
  const auto D = static_cast<Eigen::Index>(model->num_params_r());
  const Density density{(mode & 1) != 0, (mode & 2) != 0};
  return for_each_draw(n, mode >> 2, [=](int64_t i) {
    value[i] = MINUS_INFINITY;
    double* row = grad ? grad + i * D : nullptr;
    if (row) std::fill(row, row + D, NOT_A_NUMBER);
    const double v = row ? gradient_at(*model, density, x + i * D, D, row) : value_at(*model, density, x + i * D, D);
    if (std::isfinite(v))
      value[i] = v;
    else if (row)
      std::fill(row, row + D, NOT_A_NUMBER);
  });
}

// The variables of every draw, n x K in the order of bs_names(include + 1). Row i depends on seed and i alone. Where
// the generated quantities (or the transformed parameters) of a draw are rejected, what comes before them is kept.
BS_EXPORT int64_t bs_constrain(const Model* model, int64_t n, const double* x, int include, uint32_t seed, int64_t K,
                               int64_t threads, double* out) {
  const auto D = static_cast<Eigen::Index>(model->num_params_r());
  return for_each_draw(n, threads, [=](int64_t i) {
    std::fill(out + i * K, out + (i + 1) * K, NOT_A_NUMBER);
    Vector point = Eigen::Map<const Vector>(x + i * D, D), row;
    std::exception_ptr rejection;
    for (int level = include; level >= 0; --level) {
      try {
        auto rng = stan::services::util::create_rng(seed, static_cast<unsigned int>(i + 1));
        model->write_array(rng, point, row, level >= 1, level >= 2, nullptr);
        if (row.size() > K) throw std::length_error("the model wrote more variables than it named");
        std::copy(row.data(), row.data() + row.size(), out + i * K);
        break;
      } catch (...) {
        if (!rejection) rejection = std::current_exception();
      }
    }
    if (rejection) std::rethrow_exception(rejection);
  });
}

// Unconstrained points (n x D) from parameters (n x K).
BS_EXPORT int64_t bs_unconstrain(const Model* model, int64_t n, const double* in, int64_t K, double* out) {
  const auto D = static_cast<Eigen::Index>(model->num_params_r());
  return for_each_draw(n, 1, [=](int64_t i) {
    std::fill(out + i * D, out + (i + 1) * D, NOT_A_NUMBER);
    Vector row = Eigen::Map<const Vector>(in + i * K, K), point;
    model->unconstrain_array(row, point, nullptr);
    std::copy(point.data(), point.data() + D, out + i * D);
  });
}

// Seconds for `times` gradients at one point in a bare loop: what a call costs without Python. NaN if it fails.
BS_EXPORT double bs_seconds(const Model* model, const double* x, int64_t times) {
  const auto D = static_cast<Eigen::Index>(model->num_params_r());
  Vector grad(D);
  const auto began = std::chrono::steady_clock::now();
  const bool done = succeeds([&] {
    ensure_tape();
    for (int64_t i = 0; i < times; ++i) gradient_at(*model, Density{false, true}, x, D, grad.data());
  });
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
  return done ? spent.count() : NOT_A_NUMBER;
}
